// Adds an amount to an account. Running it twice would add it twice: nothing here guards against that, the host does.
#include "hapax.h"
#include "json.h"

typedef struct {
  handler_string_t account;
  int64_t amount;
} credit_t;

// Returns what is wrong with the payload; nothing if its `ptr` is NULL.
static handler_string_t read_credit(const handler_list_u8_t *payload, credit_t *credit) {
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
  json_string_t problem = json_problem(&json);
  if (problem.ptr == NULL && !has_account) return hapax_text("`account` is missing");
  if (problem.ptr == NULL && !has_amount) return hapax_text("`amount` is missing");
  return (handler_string_t){problem.ptr, problem.len};
}

bool exports_handler_handle(handler_message_t *message, handler_failure_t *failure) {
  credit_t credit;
  handler_string_t wrong = read_credit(&message->payload, &credit);
  if (wrong.ptr != NULL) {
    return hapax_reject(failure, hapax_join(2, hapax_text("payload is not the expected JSON: "), wrong));
  }
  uint64_t updated;
  hapax_error_t error;
  if (!hapax_execute("UPDATE accounts SET balance = balance + $1 WHERE id = $2", &updated, &error,
                     hapax_int64(credit.amount), hapax_string(credit.account))) {
    return hapax_retry_error(failure, &error);
  }
  if (updated == 0) {
    return hapax_reject(failure, hapax_join(3, hapax_text("account `"), credit.account, hapax_text("` does not exist")));
  }
  return true;
}
