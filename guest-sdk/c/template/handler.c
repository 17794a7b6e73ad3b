// Adds an amount to an account. Running it twice would add it twice: nothing here guards against that, the host does.
#include "hapax.h"
#include "json.h"

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
    return hapax_reject(failure, hapax_join(2, hapax_text("payload is not the expected JSON: "), hapax_text(wrong)));
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
