// Package host is what all packages of the SDK share about the host: how it fails, and its moments.
package host

import (
	"fmt"
	"time"

	"hapax/internal/types"
	wit "hapax/internal/wit/hapax_handler_types"
)

// Error is a call into the host that failed. A handler that returns it has the message run again.
type Error struct {
	// Stable, such as `constraint.unique`; docs/error-codes.md of hapax has all of them.
	Code string
	// The host's own sentence.
	Message string
	// True if the same call may succeed in a later run.
	Retryable bool
	// These are empty where the host does not know them.
	SQLState, Detail, Hint, Schema, Table, Column, Constraint string
	// The parameter at fault, counted from 1; 0 if it is none.
	Param int
	// The row of parameters at fault in ExecuteMany, counted from 0; -1 if it is none.
	Row int
	// The character of the statement at fault, counted from 1; 0 if it is none.
	Position int
	Extra    map[string]string
}

func (err *Error) Error() string {
	text := err.Code + ": " + err.Message
	if err.Detail != "" {
		text += " (" + err.Detail + ")"
	}
	if err.Param != 0 {
		text += fmt.Sprintf(" (parameter $%d)", err.Param)
	}
	return text
}

// Call returns what a call of the host gave.
func Call[T any](result types.Result[T, wit.Error]) (T, error) {
	if result.Tag() == types.ResultOk {
		return result.Ok(), nil
	}
	record := result.Err()
	err := &Error{
		Code:       record.Code,
		Message:    record.Message,
		Retryable:  record.Retryable,
		SQLState:   record.Sqlstate.Some(),
		Detail:     record.Detail.Some(),
		Hint:       record.Hint.Some(),
		Schema:     record.Schema.Some(),
		Table:      record.Table.Some(),
		Column:     record.Column.Some(),
		Constraint: record.Constraint.Some(),
		Param:      int(record.Param.Some()),
		Row:        -1,
		Position:   int(record.Position.Some()),
		Extra:      make(map[string]string, len(record.Extra)),
	}
	if record.Row.Tag() == types.OptionSome {
		err.Row = int(record.Row.Some())
	}
	for _, pair := range record.Extra {
		err.Extra[pair.F0] = pair.F1
	}
	return result.Ok(), err
}

// Pointer returns nil for none.
func Pointer[T any](option types.Option[T]) *T {
	if option.Tag() == types.OptionNone {
		return nil
	}
	value := option.Some()
	return &value
}

// Text returns none for an empty text.
func Text(text string) types.Option[string] {
	if text == "" {
		return types.None[string]()
	}
	return types.Some(text)
}

// Moment returns a moment of the contract, in UTC.
func Moment(instant wit.Instant) time.Time {
	return time.Unix(instant.Seconds, int64(instant.Nanoseconds)).UTC()
}

// Instant returns a moment as the contract has it.
func Instant(moment time.Time) wit.Instant {
	return wit.Instant{Seconds: moment.Unix(), Nanoseconds: uint32(moment.Nanosecond())}
}

// Bytes returns no nil for no bytes: as a parameter that would be NULL.
func Bytes(bytes []byte) []byte {
	if bytes == nil {
		return []byte{}
	}
	return bytes
}
