package hapax

import (
	"encoding"
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// JSON reads the payload into `into`, as [json.Unmarshal] does, or returns the error that rejects the message, which names the field at fault.
//
// Other than there, each field of a struct must be in the payload, and not as null, unless it is a pointer or its tag says `omitempty` or
// `omitzero`: a number that was forgotten is not 0.
func (message Message) JSON(into any) error {
	if !utf8.Valid(message.Payload) {
		return notJSON("it is not UTF-8")
	}
	if err := json.Unmarshal(message.Payload, into); err != nil {
		var mistake *json.InvalidUnmarshalError
		if errors.As(err, &mistake) {
			return err
		}
		return notJSON(strings.TrimPrefix(err.Error(), "json: "))
	}
	if field := missing(reflect.TypeOf(into), message.Payload, ""); field != "" {
		return notJSON("`" + field + "` is missing")
	}
	return nil
}

func notJSON(why string) error { return Reject("payload is not the expected JSON: %s", why) }

var (
	jsonReader = reflect.TypeFor[json.Unmarshaler]()
	textReader = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// Returns the path of the first field of `kind` that `raw`, which fits it otherwise, does not have; empty if it has all.
func missing(kind reflect.Type, raw []byte, path string) string {
	for kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	if pointer := reflect.PointerTo(kind); pointer.Implements(jsonReader) || pointer.Implements(textReader) {
		return ""
	}
	switch kind.Kind() {
	case reflect.Slice, reflect.Array:
		var elements []json.RawMessage
		if json.Unmarshal(raw, &elements) != nil {
			return ""
		}
		for index, element := range elements {
			if field := missing(kind.Elem(), element, path+"["+strconv.Itoa(index)+"]"); field != "" {
				return field
			}
		}
	case reflect.Struct:
		var members map[string]json.RawMessage
		if json.Unmarshal(raw, &members) != nil || members == nil {
			return ""
		}
		for index := range kind.NumField() {
			if field := missingField(kind.Field(index), raw, members, path); field != "" {
				return field
			}
		}
	}
	return ""
}

func missingField(field reflect.StructField, raw []byte, members map[string]json.RawMessage, path string) string {
	name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
	if field.Anonymous && name == "" {
		return missing(field.Type, raw, path)
	}
	if !field.IsExported() || name == "-" {
		return ""
	}
	if name == "" {
		name = field.Name
	}
	inner := name
	if path != "" {
		inner = path + "." + name
	}
	member, found := members[name]
	if !found {
		for other, value := range members {
			if strings.EqualFold(other, name) {
				member, found = value, true
			}
		}
	}
	if !found || string(member) == "null" {
		optional := field.Type.Kind() == reflect.Pointer || field.Type.Kind() == reflect.Interface ||
			strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero") ||
			reflect.PointerTo(field.Type).Implements(jsonReader) && found
		if optional {
			return ""
		}
		return inner
	}
	return missing(field.Type, member, inner)
}
