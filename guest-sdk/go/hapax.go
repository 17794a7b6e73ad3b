// Package hapax is the SDK of hapax for Go.
//
// A handler is a function of the project's package:
//
//	func Handle(message hapax.Message) error
//
// It has succeeded when it returns nil. `hapax.Reject` makes a dead letter at once; any other error, and a panic, has the message run again.
// There is no network, clock or randomness; what it can do is in the packages `hapax/sql`, `hapax/outbox`, `hapax/config` and `hapax/log`.
package hapax

import (
	"errors"
	"fmt"
	"runtime/debug"

	"hapax/internal/host"
	"hapax/internal/types"
	"hapax/internal/wit/export_wit_world"
	wit "hapax/internal/wit/hapax_handler_types"
	_ "hapax/internal/wit/wit_exports"
	"hapax/log"
)

// Run has `handle` called for each message. What a build puts around the handler calls it; not for handlers.
func Run(handle func(Message) error) {
	export_wit_world.Handler = func(message wit.Message) (result types.Result[types.Unit, wit.Failure]) {
		defer func() {
			if panicked := recover(); panicked != nil {
				reason := fmt.Sprintf("panic: %v", panicked)
				log.Error(reason, "stack", string(debug.Stack()))
				result = failed(errors.New(reason))
			}
		}()
		if err := handle(messageOf(message)); err != nil {
			return failed(err)
		}
		return types.Ok[types.Unit, wit.Failure](types.Unit{})
	}
}

func failed(err error) types.Result[types.Unit, wit.Failure] {
	var rejection *Rejection
	if errors.As(err, &rejection) {
		return types.Err[types.Unit](wit.MakeFailureReject(err.Error()))
	}
	retry := wit.Retry{Reason: err.Error()}
	var delayed *Retry
	if errors.As(err, &delayed) && delayed.After > 0 {
		retry.DelayMilliseconds = types.Some(uint64(delayed.After.Milliseconds()))
	}
	return types.Err[types.Unit](wit.MakeFailureRetry(retry))
}

func messageOf(message wit.Message) Message {
	headers := make([]Header, len(message.Headers))
	for index, header := range message.Headers {
		headers[index] = Header{Name: header.Name, Value: host.Bytes(header.Value)}
	}
	own := Message{
		ID:          message.Id,
		Source:      message.Source,
		Subject:     message.Subject,
		Key:         host.Pointer(message.Key),
		Headers:     headers,
		ContentType: host.Pointer(message.ContentType),
		Payload:     host.Bytes(message.Payload),
		Attempt:     int(message.Attempt),
	}
	if published := host.Pointer(message.PublishedAt); published != nil {
		moment := host.Moment(*published)
		own.PublishedAt = &moment
	}
	return own
}
