// Adds an amount to an account. Running it twice would add it twice: nothing here guards against that, the host does.
#include "handler.h"
#include "json.h"
#include <stdlib.h>
#include <string.h>

// A string of the contract that ends with this instance: nothing is freed, an instance serves one message.
static handler_string_t text(const char *literal) {
  return (handler_string_t){(uint8_t *)literal, strlen(literal)};
}

static handler_string_t joined(handler_string_t a, handler_string_t b) {
  handler_string_t both = {malloc(a.len + b.len), a.len + b.len};
  memcpy(both.ptr, a.ptr, a.len);
  memcpy(both.ptr + a.len, b.ptr, b.len);
  return both;
}

// Rolls back and keeps the message as a dead letter.
static bool reject(handler_failure_t *failure, handler_string_t reason) {
  failure->tag = HAPAX_HANDLER_TYPES_FAILURE_REJECT;
  failure->val.reject = reason;
  return false;
}

// Rolls back and asks for another run, for the error that the host gave.
static bool retry(handler_failure_t *failure, const hapax_handler_sql_error_t *error) {
  handler_string_t reason = joined(error->code, joined(text(": "), error->message));
  if (error->detail.is_some) {
    reason = joined(reason, joined(text(" ("), joined(error->detail.val, text(")"))));
  }
  failure->tag = HAPAX_HANDLER_TYPES_FAILURE_RETRY;
  failure->val.retry.reason = reason;
  failure->val.retry.delay_milliseconds.is_some = false;
  return false;
}

typedef struct {
  handler_string_t account;
  int64_t amount;
} credit_t;

// Returns what is wrong with the payload, or NULL.
static const char *read_credit(const handler_list_u8_t *payload, credit_t *credit) {
  json_t json = json_begin(payload->ptr, payload->len);
  bool has_account = false, has_amount = false;
  json_string_t name;
  while (json_member(&json, &name)) {
    if (json_equals(name, "account")) {
      json_string_t account = json_string(&json);
      credit->account = (handler_string_t){account.ptr, account.len};
      has_account = true;
    } else if (json_equals(name, "amount")) {
      credit->amount = json_int64(&json);
      has_amount = true;
    } else {
      json_skip(&json);
    }
  }
  json_end(&json);
  if (json.error == NULL && !has_account) return "`account` is missing";
  if (json.error == NULL && !has_amount) return "`amount` is missing";
  return json.error;
}

bool exports_handler_handle(handler_message_t *message, handler_failure_t *failure) {
  credit_t credit;
  const char *wrong = read_credit(&message->payload, &credit);
  if (wrong != NULL) {
    return reject(failure, joined(text("payload is not the expected JSON: "), text(wrong)));
  }
  handler_string_t statement = text("UPDATE accounts SET balance = balance + $1 WHERE id = $2");
  hapax_handler_sql_value_t values[] = {
      {.tag = HAPAX_HANDLER_SQL_VALUE_INT64, .val.int64 = credit.amount},
      {.tag = HAPAX_HANDLER_SQL_VALUE_TEXT, .val.text = credit.account},
  };
  hapax_handler_sql_list_value_t params = {values, 2};
  uint64_t updated;
  hapax_handler_sql_error_t error;
  if (!hapax_handler_sql_execute(&statement, &params, &updated, &error)) {
    return retry(failure, &error);
  }
  if (updated == 0) {
    return reject(failure, joined(text("account `"), joined(credit.account, text("` does not exist"))));
  }
  return true;
}
