// Package outbox publishes messages that leave once, after the commit.
package outbox

import (
	"encoding/json"
	"fmt"
	"sort"
	"time"

	"hapax/internal/host"
	"hapax/internal/types"
	wit "hapax/internal/wit/hapax_handler_outbox"
	record "hapax/internal/wit/hapax_handler_types"
)

// Message is what is published. What is left out is not sent.
type Message struct {
	Subject string
	Payload []byte
	// Sent instead of the payload, as JSON.
	JSON any
	// Messages of one key leave in the order in which they were published.
	Key string
	// The configured target; the handler's own if empty.
	Target      string
	Headers     map[string]string
	ContentType string
	// Leaves at this moment at the earliest.
	NotBefore time.Time
}

// Publish keeps the message until the transaction commits. Returns its id, the same in every run.
func Publish(message Message) (string, error) {
	if message.JSON != nil {
		payload, err := json.Marshal(message.JSON)
		if err != nil {
			return "", fmt.Errorf("a message to `%s`: %w", message.Subject, err)
		}
		message.Payload = payload
		if message.ContentType == "" {
			message.ContentType = "application/json"
		}
	}
	outgoing := record.Outgoing{
		Target:      host.Text(message.Target),
		Subject:     message.Subject,
		Key:         host.Text(message.Key),
		ContentType: host.Text(message.ContentType),
		Payload:     message.Payload,
		NotBefore:   types.None[record.Instant](),
	}
	for name, value := range message.Headers {
		outgoing.Headers = append(outgoing.Headers, record.Header{Name: name, Value: []byte(value)})
	}
	// A map has no order, and what leaves is the same in every run.
	sort.Slice(outgoing.Headers, func(i, j int) bool { return outgoing.Headers[i].Name < outgoing.Headers[j].Name })
	if !message.NotBefore.IsZero() {
		outgoing.NotBefore = types.Some(host.Instant(message.NotBefore))
	}
	return host.Call(wit.Publish(outgoing))
}
