// Does what the payload says; what it finds is in the tables.
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

static bool tour(handler_message_t *message, handler_failure_t *failure) {
  hapax_error_t error;
  handler_string_t text;
  TRY(tell("attempt", hapax_string(digits(message->attempt)), &error));
  if (!hapax_header_text(message, "MESSAGE-ID", &text)) return hapax_reject(failure, hapax_text("no header"));
  TRY(tell("header", hapax_string(text), &error));
  if (hapax_header(message, "absent") != NULL) return hapax_reject(failure, hapax_text("a header that is not there"));
  if (!hapax_config("currency", &text)) return hapax_reject(failure, hapax_text("no config"));
  TRY(tell("config", hapax_string(text), &error));
  TRY(tell("nothing", hapax_null(), &error));

  hapax_rows_t rows;
  TRY(hapax_query("SELECT CAST($1 AS bigint) AS great, x AS blob FROM samples WHERE number = 1", &rows, &error, hapax_int64(9007199254740993)));
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
  TRY(hapax_query("SELECT CAST(1 + 2 + 3 AS bigint) AS sum", &rows, &error));
  if (!hapax_get_int64(hapax_column(&rows, 0, "sum"), &number)) return hapax_reject(failure, hapax_text("no sum"));
  TRY(tell("cursor", hapax_string(digits(number)), &error));
  handler_string_t key = hapax_text("k"), json = hapax_text("{\"great\":9007199254740993}");
  TRY(hapax_publish(hapax_text("told"), &key, (handler_list_u8_t){json.ptr, json.len}, &error));
  hapax_log(HAPAX_HANDLER_TYPES_LEVEL_INFO, hapax_text("toured"));
  return true;
}

static bool copy(const hapax_rows_t *rows, size_t row, const char *statement, hapax_error_t *error) {
  // The list's first one is a place holder.
  size_t count = rows->rows.ptr[row].len;
  hapax_value_t *values = malloc((count + 1) * sizeof(hapax_value_t));
  memcpy(values + 1, rows->rows.ptr[row].ptr, count * sizeof(hapax_value_t));
  return hapax_execute_values(statement, NULL, error, values, count + 1);
}

static hapax_value_t literal(const char *text) { return hapax_string(hapax_text(text)); }

// All kinds of values: those of the table as they come, and one row of C's own.
static bool values(handler_failure_t *failure) {
  static const char insert[] =
      "INSERT INTO copies (number, b, i, f, t, x, n, d, h, ts, at, iv, u, j) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)";
  hapax_error_t error;
  hapax_rows_t rows;
  TRY(hapax_query("SELECT * FROM samples ORDER BY number", &rows, &error));
  for (size_t row = 0; row < rows.rows.len; row++) TRY(copy(&rows, row, insert, &error));
  uint8_t two[] = {0, 255};
  TRY(hapax_execute(insert, NULL, &error, hapax_int64(100), hapax_bool(true), hapax_int64(INT64_MIN), hapax_float64(0.1), literal("ä😀"),
                    hapax_bytes((handler_list_u8_t){two, 2}), literal("0.10"), literal("2024-02-29"), literal("12:34:56.000001"),
                    literal("2024-02-29T12:00:00.000000"), literal("2024-02-29T12:34:56.123000Z"), literal("P1M-2DT3.500000S"),
                    literal("00112233-4455-6677-8899-aabbccddeeff"), literal("{\"a\":[1,true,null]}")));
  return true;
}

static bool arrays(handler_failure_t *failure) {
  static const char insert[] = "INSERT INTO array_copies (number, ia, ta, ba, fa, na, o) VALUES ($1, $2, $3, $4, $5, $6, $7)";
  hapax_error_t error;
  hapax_rows_t rows;
  TRY(hapax_query("SELECT * FROM array_samples ORDER BY number", &rows, &error));
  for (size_t row = 0; row < rows.rows.len; row++) TRY(copy(&rows, row, insert, &error));
  TRY(hapax_execute(insert, NULL, &error, hapax_int64(100), literal("{-9223372036854775808,NULL}"), literal("{ä,NULL}"), literal("{t}"), literal("{0.1}"),
                    literal("{0.10}"), literal("192.0.2.2")));
  return true;
}

bool exports_handler_handle(handler_message_t *message, handler_failure_t *failure) {
  hapax_error_t error;
  handler_string_t word = {message->payload.ptr, message->payload.len};
  if (hapax_equals(word, "tour")) return tour(message, failure);
  if (hapax_equals(word, "values")) return values(failure);
  if (hapax_equals(word, "arrays")) return arrays(failure);
  if (hapax_equals(word, "reject")) return hapax_reject(failure, hapax_text("not today: ä😀"));
  if (hapax_equals(word, "retry")) return hapax_retry_after(failure, hapax_text("later: ä😀"), 1);
  if (hapax_equals(word, "error")) return hapax_retry(failure, hapax_text("out of order"));
  if (hapax_equals(word, "unique")) {
    TRY(hapax_execute("INSERT INTO samples (number) VALUES ($1)", NULL, &error, hapax_int64(1)));
  }
  if (hapax_equals(word, "wrong")) {
    TRY(hapax_execute("INSERT INTO samples (number, i) VALUES (9, $1)", NULL, &error, literal("five")));
  }
  if (hapax_equals(word, "panic")) __builtin_trap();
  while (hapax_equals(word, "memory")) {
    if (malloc(1 << 20) == NULL) __builtin_trap();
  }
  if (hapax_equals(word, "time")) {
    for (volatile int number = 0;; number++) {
    }
  }
  return hapax_reject(failure, hapax_join(2, hapax_text("no such word: "), word));
}
