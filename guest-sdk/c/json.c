#include "json.h"
#include "hapax.h"
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 100 };

json_t json_begin(const uint8_t *bytes, size_t count) {
  return (json_t){.at = bytes, .end = bytes + count};
}

static bool fail(json_t *json, const char *error) {
  if (json->error == NULL) json->error = error;
  json->at = json->end;
  return false;
}

static int peek(json_t *json) {
  while (json->at < json->end && (*json->at == ' ' || *json->at == '\n' || *json->at == '\r' || *json->at == '\t')) json->at++;
  return json->at < json->end ? *json->at : -1;
}

static bool take(json_t *json, char wanted) {
  if (peek(json) != wanted) return false;
  json->at++;
  return true;
}

static bool is_digit(const json_t *json) {
  return json->at < json->end && *json->at >= '0' && *json->at <= '9';
}

bool json_equals(json_string_t string, const char *literal) {
  return string.len == strlen(literal) && memcmp(string.ptr, literal, string.len) == 0;
}

// ---- Strings

static bool hex4(json_t *json, uint32_t *unit) {
  *unit = 0;
  for (int i = 0; i < 4; i++) {
    int c = json->at < json->end ? *json->at++ : -1;
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return false;
    *unit = *unit * 16 + (uint32_t)digit;
  }
  return true;
}

// Reads what follows `\u`, the second half of a pair included.
static bool code_point(json_t *json, uint32_t *point) {
  uint32_t low;
  if (!hex4(json, point)) return false;
  if (*point < 0xd800 || *point > 0xdfff) return true;
  if (*point > 0xdbff || json->end - json->at < 2 || json->at[0] != '\\' || json->at[1] != 'u') return false;
  json->at += 2;
  if (!hex4(json, &low) || low < 0xdc00 || low > 0xdfff) return false;
  *point = 0x10000 + ((*point - 0xd800) << 10) + (low - 0xdc00);
  return true;
}

static size_t encode(uint32_t point, uint8_t *out) {
  if (point < 0x80) return out[0] = (uint8_t)point, 1;
  size_t more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
  static const uint8_t first[] = {0, 0xc0, 0xe0, 0xf0};
  for (size_t i = more; i > 0; i--, point >>= 6) out[i] = 0x80 | (point & 0x3f);
  out[0] = (uint8_t)(first[more] | point);
  return more + 1;
}

json_string_t json_string(json_t *json) {
  json_string_t string = {NULL, 0}, none = string;
  if (!take(json, '"')) return fail(json, "a string is expected"), none;
  // Never longer than as it is written.
  string.ptr = malloc((size_t)(json->end - json->at) + 1);
  while (json->at < json->end && *json->at != '"') {
    uint8_t c = *json->at++;
    if (c < 0x20) return fail(json, "a control character in a string"), none;
    if (c == '\\') {
      static const char escapes[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
      c = json->at < json->end ? *json->at++ : 0;
      uint32_t point = 0;
      if (c == 'u') {
        if (!code_point(json, &point)) return fail(json, "an invalid escape in a string"), none;
      } else {
        const char *found = escapes;
        while (*found && (uint8_t)*found != c) found += 2;
        if (!*found) return fail(json, "an invalid escape in a string"), none;
        point = (uint8_t)found[1];
      }
      string.len += encode(point, string.ptr + string.len);
    } else {
      string.ptr[string.len++] = c;
    }
  }
  if (json->at == json->end) return fail(json, "a string does not end"), none;
  json->at++;
  // One that is not UTF-8 must not reach the host: it would stop the call instead of getting an error.
  if (!hapax_is_utf8(string.ptr, string.len)) return fail(json, "a string is not UTF-8"), none;
  return string;
}

// ---- Numbers

// Reads the digits before a fraction or an exponent.
static bool whole(json_t *json) {
  if (!is_digit(json)) return false;
  if (*json->at == '0') return json->at++, !is_digit(json);
  while (is_digit(json)) json->at++;
  return true;
}

static bool digits(json_t *json) {
  if (!is_digit(json)) return false;
  while (is_digit(json)) json->at++;
  return true;
}

static bool is_at(const json_t *json, char a, char b) {
  return json->at < json->end && (*json->at == a || *json->at == b);
}

int64_t json_int64(json_t *json) {
  bool negative = take(json, '-');
  const uint8_t *first = json->at;
  if (!whole(json) || is_at(json, '.', '.') || is_at(json, 'e', 'E')) return fail(json, "an integer is expected"), 0;
  // Counted below zero, where there is one more.
  int64_t value = 0;
  for (const uint8_t *digit = first; digit < json->at; digit++) {
    int next = *digit - '0';
    if (value < (INT64_MIN + next) / 10) return fail(json, "an integer does not fit into 64 bits"), 0;
    value = value * 10 - next;
  }
  if (negative) return value;
  return value == INT64_MIN ? fail(json, "an integer does not fit into 64 bits"), 0 : -value;
}

static bool number(json_t *json) {
  take(json, '-');
  if (!whole(json)) return false;
  if (is_at(json, '.', '.') && (json->at++, !digits(json))) return false;
  if (!is_at(json, 'e', 'E')) return true;
  json->at++;
  if (is_at(json, '+', '-')) json->at++;
  return digits(json);
}

// ---- Values

static bool word(json_t *json, const char *literal) {
  size_t len = strlen(literal);
  if ((size_t)(json->end - json->at) < len || memcmp(json->at, literal, len) != 0) return false;
  json->at += len;
  return true;
}

static bool skip(json_t *json, int depth) {
  int c = peek(json);
  if (depth == 0) return fail(json, "nested too deeply");
  if (c == '"') return json_string(json), json->error == NULL;
  if (c == '{' || c == '[') {
    char close = c == '{' ? '}' : ']';
    json->at++;
    if (take(json, close)) return true;
    do {
      if (c == '{' && (json_string(json), !take(json, ':'))) return fail(json, "a name and a colon are expected");
      if (!skip(json, depth - 1)) return false;
    } while (take(json, ','));
    return take(json, close) || fail(json, "a comma or an end is expected");
  }
  return word(json, "true") || word(json, "false") || word(json, "null") || number(json) || fail(json, "a value is expected");
}

void json_skip(json_t *json) { skip(json, DEPTH_MAX); }

bool json_member(json_t *json, json_string_t *name) {
  if (json->error != NULL) return false;
  if (!json->begun) {
    json->begun = true;
    if (!take(json, '{')) return fail(json, "an object is expected");
    if (take(json, '}')) return false;
  } else {
    if (take(json, '}')) return false;
    if (!take(json, ',')) return fail(json, "a comma or an end is expected");
  }
  json->member = (json_string_t){NULL, 0};
  *name = json_string(json);
  if (json->error != NULL || !(take(json, ':') || fail(json, "a colon is expected"))) return false;
  json->member = *name;
  return true;
}

void json_end(json_t *json) {
  if (json->error == NULL && peek(json) != -1) fail(json, "more than one value");
}

json_string_t json_problem(const json_t *json) {
  if (json->error == NULL) return (json_string_t){NULL, 0};
  handler_string_t text = hapax_text(json->error);
  if (json->member.ptr != NULL) {
    handler_string_t member = {json->member.ptr, json->member.len};
    text = hapax_join(4, hapax_text("`"), member, hapax_text("`: "), text);
  }
  return (json_string_t){text.ptr, text.len};
}
