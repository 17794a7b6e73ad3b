// Reads one JSON object, member by member. The first error ends it: what is read after that is empty.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// UTF-8, without a NUL at its end.
typedef struct {
  uint8_t *ptr;
  size_t len;
} json_string_t;

typedef struct {
  const uint8_t *at, *end;
  bool begun;
  const char *error; // NULL if there was none
  json_string_t member; // whose value is read; its `ptr` is NULL before the first
} json_t;

json_t json_begin(const uint8_t *bytes, size_t count);

// Goes to the object's next member, whose value is to be read or skipped next. False after the last, and after an error.
bool json_member(json_t *json, json_string_t *name);

json_string_t json_string(json_t *json);
int64_t json_int64(json_t *json);
void json_skip(json_t *json);

// Nothing but white space may follow.
void json_end(json_t *json);

// What was wrong, and in which member: "`amount`: an integer is expected". Its `ptr` is NULL if nothing was.
json_string_t json_problem(const json_t *json);

bool json_equals(json_string_t string, const char *literal);
