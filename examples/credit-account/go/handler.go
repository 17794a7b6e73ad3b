// Package handler adds an amount to an account. Running it twice would add it twice: nothing here guards against that, the host does.
package handler

import (
	"hapax"
	"hapax/sql"
)

type credit struct {
	Account string `json:"account"`
	Amount  int64  `json:"amount"`
}

func Handle(message hapax.Message) error {
	var credit credit
	if err := message.JSON(&credit); err != nil {
		return err
	}
	updated, err := sql.Execute("UPDATE accounts SET balance = balance + $1 WHERE id = $2", credit.Amount, credit.Account)
	if err != nil {
		return err
	}
	if updated == 0 {
		return hapax.Reject("account `%s` does not exist", credit.Account)
	}
	return nil
}
