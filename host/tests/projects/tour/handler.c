// Goes through all of the SDK; what it finds is in the table.
#include "hapax.h"

static bool tell(const char *name, hapax_value_t value, hapax_error_t *error) {
  return hapax_execute("INSERT INTO told (name, value) VALUES ($1, $2)", NULL, error, hapax_string(hapax_text(name)), value);
}

static handler_string_t digits(int64_t number) {
  handler_string_t text = {malloc(20), 0};
  for (int64_t left = number; left > 0; left /= 10) text.len++;
  for (size_t i = text.len; i > 0; i--, number /= 10) text.ptr[i - 1] = '0' + number % 10;
  return text;
}

static handler_string_t hex(handler_list_u8_t bytes) {
  handler_string_t text = {malloc(bytes.len * 2), bytes.len * 2};
  for (size_t i = 0; i < text.len; i++) text.ptr[i] = "0123456789abcdef"[(bytes.ptr[i / 2] >> (i % 2 ? 0 : 4)) & 15];
  return text;
}

#define TRY(call) \
  if (!(call)) return hapax_retry_error(failure, &error)

bool exports_handler_handle(handler_message_t *message, handler_failure_t *failure) {
  hapax_error_t error;
  if (message->payload.len == 6) return hapax_retry_after(failure, hapax_text("Error: out of order"), 1);
  handler_string_t text;
  TRY(tell("attempt", hapax_string(digits(message->attempt)), &error));
  if (!hapax_header_text(message, "KIND", &text)) return hapax_reject(failure, hapax_text("no header"));
  TRY(tell("header", hapax_string(text), &error));
  if (hapax_header(message, "absent") != NULL) return hapax_reject(failure, hapax_text("a header that is not there"));
  if (!hapax_config("currency", &text)) return hapax_reject(failure, hapax_text("no config"));
  TRY(tell("config", hapax_string(text), &error));
  TRY(tell("nothing", hapax_null(), &error));
  TRY(tell("decimal", hapax_string(hapax_text("0.10")), &error));

  hapax_rows_t rows;
  uint8_t two[] = {0, 255};
  TRY(hapax_query("SELECT $1 AS great, $2 AS blob", &rows, &error, hapax_int64(9007199254740993), hapax_bytes((handler_list_u8_t){two, 2})));
  int64_t number;
  handler_list_u8_t blob;
  if (!hapax_get_int64(hapax_column(&rows, 0, "great"), &number) || !hapax_get_bytes(hapax_column(&rows, 0, "blob"), &blob) ||
      hapax_get_int64(hapax_column(&rows, 0, "absent"), &number) || hapax_column(&rows, 1, "great") != NULL) {
    return hapax_reject(failure, hapax_text("other columns"));
  }
  TRY(tell("great", hapax_string(digits(number)), &error));
  TRY(tell("blob", hapax_string(hex(blob)), &error));

  hapax_savepoint_t savepoint;
  TRY(hapax_begin_savepoint(&savepoint, &error));
  TRY(tell("kept", hapax_string(hapax_text("y")), &error));
  TRY(hapax_release(savepoint, &error));
  TRY(hapax_begin_savepoint(&savepoint, &error));
  TRY(tell("gone", hapax_string(hapax_text("x")), &error));
  TRY(hapax_publish(hapax_text("gone"), NULL, message->payload, &error));
  if (tell("kept", hapax_string(hapax_text("z")), &error)) return hapax_reject(failure, hapax_text("twice"));
  hapax_error_t ignored;
  if (!hapax_rollback(savepoint, &ignored)) return hapax_retry_error(failure, &ignored);
  TRY(tell("unique", hapax_string(error.code), &error));
  TRY(hapax_query("SELECT 1 AS one FROM told WHERE name = $1", &rows, &error, hapax_string(hapax_text("gone"))));
  if (rows.rows.len != 0) return hapax_reject(failure, hapax_text("it is there"));
  TRY(hapax_query("SELECT 1 + 2 + 3 AS sum", &rows, &error));
  if (!hapax_get_int64(hapax_column(&rows, 0, "sum"), &number)) return hapax_reject(failure, hapax_text("no sum"));
  TRY(tell("cursor", hapax_string(digits(number)), &error));
  handler_string_t key = hapax_text("k"), json = hapax_text("{\"great\":9007199254740993}");
  TRY(hapax_publish(hapax_text("told"), &key, (handler_list_u8_t){json.ptr, json.len}, &error));
  hapax_log(HAPAX_HANDLER_TYPES_LEVEL_INFO, hapax_text("toured"));
  return true;
}
