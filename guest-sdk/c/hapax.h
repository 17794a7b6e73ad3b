// The SDK of hapax for C. It stands on `handler.h`, which is generated from the contract and may be used beside it.
//
// A handler is one function:
//
//   bool exports_handler_handle(handler_message_t *message, handler_failure_t *failure)
//
// True is ok: what it wrote is committed. False is a failure, which `reject` and `retry` describe: `return hapax_reject(failure, ...)`.
//
// Who owns what: an instance serves one message and is thrown away with its memory, so nothing here is ever freed (`free` does nothing), and every
// pointer is good until the handler returns. Arguments of a function stay the caller's and are not kept. A string is pointer and length,
// without a NUL at its end, and must be UTF-8: the host stops a call that hands over something else (`hapax_is_utf8`). There is no C library but what
// `libc/` declares.
#pragma once
#include "handler.h"
#include <stdlib.h>
#include <string.h>

// ---- Strings

// The string of a literal, which is not copied.
handler_string_t hapax_text(const char *literal);
bool hapax_equals(handler_string_t string, const char *literal);
bool hapax_is_utf8(const uint8_t *bytes, size_t count);
// A new string of `count` strings, one after the other: hapax_join(3, a, b, c).
handler_string_t hapax_join(int count, ...);

// ---- Failures. Both fill `failure` and return false.

// Keeps the message as a dead letter now.
bool hapax_reject(handler_failure_t *failure, handler_string_t reason);
// Has the message run again, after the configured backoff.
bool hapax_retry(handler_failure_t *failure, handler_string_t reason);
// The same, after so many milliseconds at the earliest.
bool hapax_retry_after(handler_failure_t *failure, handler_string_t reason, uint64_t milliseconds);
// The same, with what a failed call of the host has said as the reason: code, message, detail.
bool hapax_retry_error(handler_failure_t *failure, const hapax_handler_types_error_t *error);

// ---- The message

// The first header of that name, in any case of its letters, or NULL.
const handler_list_u8_t *hapax_header(const handler_message_t *message, const char *name);
// The same, as text. False if there is none, or if it is not UTF-8.
bool hapax_header_text(const handler_message_t *message, const char *name, handler_string_t *text);

// ---- Parameters. Text serves for uuid, numeric, dates, JSON, enums and the like: the database's own type at that place decides.

typedef hapax_handler_sql_value_t hapax_value_t;

hapax_value_t hapax_null(void);
hapax_value_t hapax_bool(bool value);
hapax_value_t hapax_int64(int64_t value);
hapax_value_t hapax_float64(double value);
hapax_value_t hapax_string(handler_string_t value);
hapax_value_t hapax_bytes(handler_list_u8_t value);

// ---- SQL. False, with `error` filled, if the host refused the call or the database failed.

typedef hapax_handler_types_error_t hapax_error_t;

// Runs one statement. `updated`, unless it is NULL, gets how many rows it affected.
#define hapax_execute(statement, updated, error, ...) \
  hapax_execute_values(statement, updated, error, (hapax_value_t[]){hapax_null(), __VA_ARGS__}, \
                       sizeof((hapax_value_t[]){hapax_null(), __VA_ARGS__}) / sizeof(hapax_value_t))
// Runs one statement and returns all of its rows.
#define hapax_query(statement, rows, error, ...) \
  hapax_query_values(statement, rows, error, (hapax_value_t[]){hapax_null(), __VA_ARGS__}, \
                     sizeof((hapax_value_t[]){hapax_null(), __VA_ARGS__}) / sizeof(hapax_value_t))

typedef hapax_handler_sql_result_set_t hapax_rows_t;

// What the macros call; the first of the `count` values only makes an empty list possible, and is left out.
bool hapax_execute_values(const char *statement, uint64_t *updated, hapax_error_t *error, hapax_value_t *values, size_t count);
bool hapax_query_values(const char *statement, hapax_rows_t *rows, hapax_error_t *error, hapax_value_t *values, size_t count);

// The column of that name in one row, counted from 0, or NULL if there is none.
const hapax_value_t *hapax_column(const hapax_rows_t *rows, size_t row, const char *name);
// Read a value of that type; false if it is another one, or `value` is NULL.
bool hapax_get_int64(const hapax_value_t *value, int64_t *into);
bool hapax_get_float64(const hapax_value_t *value, double *into);
bool hapax_get_bool(const hapax_value_t *value, bool *into);
bool hapax_get_bytes(const hapax_value_t *value, handler_list_u8_t *into);
// Text, and what comes as exact text: decimal, uuid, JSON, and types that the contract has no case for.
bool hapax_get_text(const hapax_value_t *value, handler_string_t *into);
bool hapax_is_null(const hapax_value_t *value);

// ---- Savepoints. One that was begun must be ended, also before the handler returns false, or the message fails as `savepoint.open`.

typedef hapax_handler_sql_own_savepoint_t hapax_savepoint_t;

bool hapax_begin_savepoint(hapax_savepoint_t *savepoint, hapax_error_t *error);
// Keeps what was done since. The savepoint is gone, whatever is returned.
bool hapax_release(hapax_savepoint_t savepoint, hapax_error_t *error);
// Undoes what was done since, messages published among it. The savepoint is gone, whatever is returned.
bool hapax_rollback(hapax_savepoint_t savepoint, hapax_error_t *error);

// ---- The outbox, the configuration, the log

// Keeps a message until the transaction commits, for the handler's own target. `key` may be NULL; messages of one key leave in order. More is in
// `hapax_handler_outbox_publish`.
bool hapax_publish(handler_string_t subject, const handler_string_t *key, handler_list_u8_t payload, hapax_error_t *error);
// A name of the handler's table `config`: a string as written, any other value as JSON text. False if there is none.
bool hapax_config(const char *name, handler_string_t *value);
// A line in the host's log. `level` is such as HAPAX_HANDLER_TYPES_LEVEL_INFO.
void hapax_log(hapax_handler_log_level_t level, handler_string_t message);
