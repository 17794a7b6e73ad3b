package hapax

import (
	"errors"
	"fmt"
	"time"

	"hapax/internal/host"
)

// Error is a call into the host that failed. A handler that returns it has the message run again.
type Error = host.Error

// Code returns the code of the [Error] that `err` is or wraps, such as `constraint.unique`; empty if there is none.
func Code(err error) string {
	var failed *Error
	if errors.As(err, &failed) {
		return failed.Code
	}
	return ""
}

// Rejection keeps the message as a dead letter now; nothing that was written stays.
type Rejection struct{ Reason string }

func (rejection *Rejection) Error() string { return rejection.Reason }

// Reject returns the error that makes a dead letter of the message. An error that wraps it does the same, with its own text.
func Reject(format string, arguments ...any) error {
	return &Rejection{Reason: fmt.Sprintf(format, arguments...)}
}

// Retry rolls back and has the message run again, as every other error does, but not before the time is over.
type Retry struct {
	Reason string
	// At least; the configured backoff if 0.
	After time.Duration
}

func (retry *Retry) Error() string { return retry.Reason }

// RetryAfter returns the error that has the message run again after `delay` at the earliest.
func RetryAfter(delay time.Duration, format string, arguments ...any) error {
	return &Retry{Reason: fmt.Sprintf(format, arguments...), After: delay}
}
