package hapax

import (
	"strings"
	"time"
	"unicode/utf8"
)

// Header is a header of a message; a name can occur more than once.
type Header struct {
	Name  string
	Value []byte
}

// Message is one message, as this delivery carries it.
type Message struct {
	// The id that is claimed.
	ID string
	// The source's name in the configuration.
	Source string
	// The broker's subject, or the queue's topic; may be empty.
	Subject string
	// The key that orders the message (`order_by`); nil if the handler has none.
	Key *string
	// In the order in which the source gave them.
	Headers []Header
	// Nil if there is none.
	ContentType *string
	Payload     []byte
	// Failures charged to this message so far, plus 1.
	Attempt int
	// When the source accepted it, in UTC; nil if the source does not say so.
	PublishedAt *time.Time
}

// Text returns the payload as text, or the error that rejects the message if it is not UTF-8.
func (message Message) Text() (string, error) { return text(message.Payload, "payload") }

// Header returns the first header of that name, in any case of its letters, and whether there is one.
func (message Message) Header(name string) ([]byte, bool) {
	for _, header := range message.Headers {
		if strings.EqualFold(header.Name, name) {
			return header.Value, true
		}
	}
	return nil, false
}

// HeaderText returns the same as text; nil if there is none. The error rejects the message if it is not UTF-8.
func (message Message) HeaderText(name string) (*string, error) {
	value, found := message.Header(name)
	if !found {
		return nil, nil
	}
	decoded, err := text(value, "header `"+name+"`")
	return &decoded, err
}

func text(bytes []byte, what string) (string, error) {
	if !utf8.Valid(bytes) {
		return "", Reject("%s is not UTF-8", what)
	}
	return string(bytes), nil
}
