package sql

import (
	"encoding/json"
	"time"

	"hapax/internal/host"
	"hapax/internal/types"
	wit "hapax/internal/wit/hapax_handler_sql"
)

// Decimal is an exact number as text, such as "0.10".
type Decimal string

// UUID is 8-4-4-4-12 hexadecimal digits, in lower case in results.
type UUID string

type (
	// Date is a day without a time.
	Date = wit.Date
	// Time is a time of day.
	Time = wit.Time
	// Timestamp is a date and time without a zone. A moment is a time.Time.
	Timestamp = wit.Timestamp
	// Interval has three parts that never carry over into one another.
	Interval = wit.Interval
	// Other is a value of a type without a Go type here, in the database's own text form.
	Other = wit.Other
	// Undecoded is a value that the host could not decode. No parameter.
	Undecoded = wit.Undecoded
)

// Row is a row's columns by name. A value is nil (NULL), a bool, an int64, a float64, a string, a []byte, a time.Time, a json.RawMessage, a []any
// (an array), or one of the types of this package.
type Row map[string]any

// Returns a column's value in Go's own type.
func fromHost(value wit.Value) any {
	switch value.Tag() {
	case wit.ValueNull:
		return nil
	case wit.ValueBoolean:
		return value.Boolean()
	case wit.ValueInt64:
		return value.Int64()
	case wit.ValueFloat64:
		return value.Float64()
	case wit.ValueText:
		return value.Text()
	case wit.ValueBytes:
		return host.Bytes(value.Bytes())
	case wit.ValueDecimal:
		return Decimal(value.Decimal())
	case wit.ValueDate:
		return value.Date()
	case wit.ValueTime:
		return value.Time()
	case wit.ValueTimestamp:
		return value.Timestamp()
	case wit.ValueInstant:
		return host.Moment(value.Instant())
	case wit.ValueInterval:
		return value.Interval()
	case wit.ValueUuid:
		return UUID(value.Uuid())
	case wit.ValueJson:
		return json.RawMessage(value.Json())
	case wit.ValueBooleanArray:
		return array(value.BooleanArray(), same)
	case wit.ValueInt64Array:
		return array(value.Int64Array(), same)
	case wit.ValueFloat64Array:
		return array(value.Float64Array(), same)
	case wit.ValueTextArray:
		return array(value.TextArray(), same)
	case wit.ValueBytesArray:
		return array(value.BytesArray(), host.Bytes)
	case wit.ValueDecimalArray:
		return array(value.DecimalArray(), func(text string) Decimal { return Decimal(text) })
	case wit.ValueDateArray:
		return array(value.DateArray(), same)
	case wit.ValueTimeArray:
		return array(value.TimeArray(), same)
	case wit.ValueTimestampArray:
		return array(value.TimestampArray(), same)
	case wit.ValueInstantArray:
		return array(value.InstantArray(), func(instant wit.Instant) time.Time { return host.Moment(instant) })
	case wit.ValueIntervalArray:
		return array(value.IntervalArray(), same)
	case wit.ValueUuidArray:
		return array(value.UuidArray(), func(text string) UUID { return UUID(text) })
	case wit.ValueJsonArray:
		return array(value.JsonArray(), func(text string) json.RawMessage { return json.RawMessage(text) })
	case wit.ValueOther:
		return value.Other()
	default:
		return value.Undecoded()
	}
}

func same[T any](value T) T { return value }

func array[T, U any](elements []types.Option[T], convert func(T) U) []any {
	values := make([]any, len(elements))
	for index, element := range elements {
		if element.Tag() == types.OptionSome {
			values[index] = convert(element.Some())
		}
	}
	return values
}
