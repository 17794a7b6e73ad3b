#include "hapax.h"
#include <stdarg.h>

// ---- Strings

handler_string_t hapax_text(const char *literal) {
  return (handler_string_t){(uint8_t *)literal, strlen(literal)};
}

bool hapax_equals(handler_string_t string, const char *literal) {
  return string.len == strlen(literal) && memcmp(string.ptr, literal, string.len) == 0;
}

handler_string_t hapax_join(int count, ...) {
  va_list strings;
  size_t len = 0;
  va_start(strings, count);
  for (int i = 0; i < count; i++) len += va_arg(strings, handler_string_t).len;
  va_end(strings);
  handler_string_t joined = {malloc(len), 0};
  va_start(strings, count);
  for (int i = 0; i < count; i++) {
    handler_string_t string = va_arg(strings, handler_string_t);
    memcpy(joined.ptr + joined.len, string.ptr, string.len);
    joined.len += string.len;
  }
  va_end(strings);
  return joined;
}

bool hapax_is_utf8(const uint8_t *s, size_t len) {
  for (size_t i = 0; i < len;) {
    uint8_t c = s[i++];
    if (c < 0x80) continue;
    size_t more = c >= 0xc2 && c <= 0xdf ? 1 : c >= 0xe0 && c <= 0xef ? 2 : c >= 0xf0 && c <= 0xf4 ? 3 : 0;
    if (more == 0 || len - i < more) return false;
    uint8_t low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80, high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    for (; more > 0; more--, low = 0x80, high = 0xbf) {
      if (s[i] < low || s[i++] > high) return false;
    }
  }
  return true;
}

// ---- Failures

bool hapax_reject(handler_failure_t *failure, handler_string_t reason) {
  failure->tag = HAPAX_HANDLER_TYPES_FAILURE_REJECT;
  // The bindings free it when it is handed over: never a literal.
  failure->val.reject = hapax_join(1, reason);
  return false;
}

bool hapax_retry(handler_failure_t *failure, handler_string_t reason) {
  failure->tag = HAPAX_HANDLER_TYPES_FAILURE_RETRY;
  failure->val.retry.reason = hapax_join(1, reason);
  failure->val.retry.delay_milliseconds.is_some = false;
  return false;
}

bool hapax_retry_after(handler_failure_t *failure, handler_string_t reason, uint64_t milliseconds) {
  hapax_retry(failure, reason);
  failure->val.retry.delay_milliseconds.is_some = true;
  failure->val.retry.delay_milliseconds.val = milliseconds;
  return false;
}

bool hapax_retry_error(handler_failure_t *failure, const hapax_error_t *error) {
  handler_string_t reason = hapax_join(3, error->code, hapax_text(": "), error->message);
  if (error->detail.is_some) {
    reason = hapax_join(4, reason, hapax_text(" ("), error->detail.val, hapax_text(")"));
  }
  return hapax_retry(failure, reason);
}

// ---- The message

static uint8_t lower(uint8_t c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; }

const handler_list_u8_t *hapax_header(const handler_message_t *message, const char *name) {
  size_t len = strlen(name);
  for (size_t i = 0; i < message->headers.len; i++) {
    const hapax_handler_types_header_t *header = &message->headers.ptr[i];
    size_t same = 0;
    while (header->name.len == len && same < len && lower(header->name.ptr[same]) == lower((uint8_t)name[same])) same++;
    if (header->name.len == len && same == len) return &header->value;
  }
  return NULL;
}

bool hapax_header_text(const handler_message_t *message, const char *name, handler_string_t *text) {
  const handler_list_u8_t *value = hapax_header(message, name);
  if (value == NULL || !hapax_is_utf8(value->ptr, value->len)) return false;
  *text = (handler_string_t){value->ptr, value->len};
  return true;
}

// ---- Parameters

hapax_value_t hapax_null(void) { return (hapax_value_t){.tag = HAPAX_HANDLER_SQL_VALUE_NULL}; }
hapax_value_t hapax_bool(bool value) { return (hapax_value_t){.tag = HAPAX_HANDLER_SQL_VALUE_BOOLEAN, .val.boolean = value}; }
hapax_value_t hapax_int64(int64_t value) { return (hapax_value_t){.tag = HAPAX_HANDLER_SQL_VALUE_INT64, .val.int64 = value}; }
hapax_value_t hapax_float64(double value) { return (hapax_value_t){.tag = HAPAX_HANDLER_SQL_VALUE_FLOAT64, .val.float64 = value}; }
hapax_value_t hapax_string(handler_string_t value) { return (hapax_value_t){.tag = HAPAX_HANDLER_SQL_VALUE_TEXT, .val.text = value}; }
hapax_value_t hapax_bytes(handler_list_u8_t value) { return (hapax_value_t){.tag = HAPAX_HANDLER_SQL_VALUE_BYTES, .val.bytes = value}; }

// ---- SQL

bool hapax_execute_values(const char *statement, uint64_t *updated, hapax_error_t *error, hapax_value_t *values, size_t count) {
  handler_string_t text = hapax_text(statement);
  hapax_handler_sql_list_value_t params = {values + 1, count - 1};
  uint64_t ignored;
  return hapax_handler_sql_execute(&text, &params, updated == NULL ? &ignored : updated, error);
}

bool hapax_query_values(const char *statement, hapax_rows_t *rows, hapax_error_t *error, hapax_value_t *values, size_t count) {
  handler_string_t text = hapax_text(statement);
  hapax_handler_sql_list_value_t params = {values + 1, count - 1};
  return hapax_handler_sql_query(&text, &params, rows, error);
}

const hapax_value_t *hapax_column(const hapax_rows_t *rows, size_t row, const char *name) {
  if (row >= rows->rows.len) return NULL;
  for (size_t i = 0; i < rows->columns.len; i++) {
    if (hapax_equals(rows->columns.ptr[i].name, name)) return &rows->rows.ptr[row].ptr[i];
  }
  return NULL;
}

bool hapax_get_int64(const hapax_value_t *value, int64_t *into) {
  if (value == NULL || value->tag != HAPAX_HANDLER_SQL_VALUE_INT64) return false;
  *into = value->val.int64;
  return true;
}

bool hapax_get_float64(const hapax_value_t *value, double *into) {
  if (value == NULL || value->tag != HAPAX_HANDLER_SQL_VALUE_FLOAT64) return false;
  *into = value->val.float64;
  return true;
}

bool hapax_get_bool(const hapax_value_t *value, bool *into) {
  if (value == NULL || value->tag != HAPAX_HANDLER_SQL_VALUE_BOOLEAN) return false;
  *into = value->val.boolean;
  return true;
}

bool hapax_get_bytes(const hapax_value_t *value, handler_list_u8_t *into) {
  if (value == NULL || value->tag != HAPAX_HANDLER_SQL_VALUE_BYTES) return false;
  *into = value->val.bytes;
  return true;
}

bool hapax_get_text(const hapax_value_t *value, handler_string_t *into) {
  if (value == NULL) return false;
  switch (value->tag) {
    case HAPAX_HANDLER_SQL_VALUE_TEXT: *into = value->val.text; return true;
    case HAPAX_HANDLER_SQL_VALUE_DECIMAL: *into = value->val.decimal; return true;
    case HAPAX_HANDLER_SQL_VALUE_UUID: *into = value->val.uuid; return true;
    case HAPAX_HANDLER_SQL_VALUE_JSON: *into = value->val.json; return true;
    case HAPAX_HANDLER_SQL_VALUE_OTHER: *into = value->val.other.text; return true;
    default: return false;
  }
}

bool hapax_is_null(const hapax_value_t *value) { return value != NULL && value->tag == HAPAX_HANDLER_SQL_VALUE_NULL; }

// ---- Savepoints

bool hapax_begin_savepoint(hapax_savepoint_t *savepoint, hapax_error_t *error) {
  return hapax_handler_sql_begin_savepoint(savepoint, error);
}

bool hapax_release(hapax_savepoint_t savepoint, hapax_error_t *error) {
  bool released = hapax_handler_sql_method_savepoint_release(hapax_handler_sql_borrow_savepoint(savepoint), error);
  hapax_handler_sql_savepoint_drop_own(savepoint);
  return released;
}

bool hapax_rollback(hapax_savepoint_t savepoint, hapax_error_t *error) {
  bool undone = hapax_handler_sql_method_savepoint_rollback(hapax_handler_sql_borrow_savepoint(savepoint), error);
  hapax_handler_sql_savepoint_drop_own(savepoint);
  return undone;
}

// ---- The outbox, the configuration, the log

bool hapax_publish(handler_string_t subject, const handler_string_t *key, handler_list_u8_t payload, hapax_error_t *error) {
  hapax_handler_outbox_outgoing_t message = {.subject = subject, .payload = payload};
  if (key != NULL) {
    message.key.is_some = true;
    message.key.val = *key;
  }
  handler_string_t id;
  return hapax_handler_outbox_publish(&message, &id, error);
}

bool hapax_config(const char *name, handler_string_t *value) {
  handler_string_t text = hapax_text(name);
  return hapax_handler_config_get(&text, value);
}

void hapax_log(hapax_handler_log_level_t level, handler_string_t message) {
  handler_list_tuple2_string_string_t none = {NULL, 0};
  hapax_handler_log_write(level, &message, &none);
}
