package sql

import (
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"time"

	"hapax/internal/host"
	"hapax/internal/types"
	wit "hapax/internal/wit/hapax_handler_sql"
)

// Returns the parameters of one statement. `where` goes before their numbers in errors.
func toParams(params []any, where string) ([]wit.Value, error) {
	values := make([]wit.Value, len(params))
	for index, param := range params {
		value, err := toHost(param)
		if err != nil {
			return nil, fmt.Errorf("%sparameter $%d: %w", where, index+1, err)
		}
		values[index] = value
	}
	return values, nil
}

// Returns a parameter as the contract has it.
func toHost(param any) (wit.Value, error) {
	switch value := param.(type) {
	case nil:
		return wit.MakeValueNull(), nil
	case time.Time:
		return wit.MakeValueInstant(host.Instant(value)), nil
	case json.RawMessage:
		return wit.MakeValueJson(string(value)), nil
	case Decimal:
		return wit.MakeValueDecimal(string(value)), nil
	case UUID:
		return wit.MakeValueUuid(string(value)), nil
	case Date:
		return wit.MakeValueDate(value), nil
	case Time:
		return wit.MakeValueTime(value), nil
	case Timestamp:
		return wit.MakeValueTimestamp(value), nil
	case Interval:
		return wit.MakeValueInterval(value), nil
	case Other:
		return wit.MakeValueOther(value), nil
	}
	value := reflect.ValueOf(param)
	if value.Kind() == reflect.Pointer && value.IsNil() {
		return wit.MakeValueNull(), nil
	}
	// A time.Time behind a pointer has a text form, too, and is a moment all the same.
	if value.Kind() == reflect.Pointer {
		if _, moment := param.(*time.Time); moment {
			return toHost(value.Elem().Interface())
		}
	}
	if text, ok := param.(encoding.TextMarshaler); ok {
		written, err := text.MarshalText()
		return wit.MakeValueText(string(written)), err
	}
	switch value.Kind() {
	case reflect.Pointer:
		return toHost(value.Elem().Interface())
	case reflect.Bool:
		return wit.MakeValueBoolean(value.Bool()), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return wit.MakeValueInt64(value.Int()), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if value.Uint() > math.MaxInt64 {
			return wit.Value{}, fmt.Errorf("%d does not fit into 64 bits with a sign; pass it as a sql.Decimal", value.Uint())
		}
		return wit.MakeValueInt64(int64(value.Uint())), nil
	case reflect.Float32, reflect.Float64:
		return wit.MakeValueFloat64(value.Float()), nil
	case reflect.String:
		return wit.MakeValueText(value.String()), nil
	case reflect.Slice:
		if value.Type().Elem().Kind() == reflect.Uint8 {
			if value.IsNil() {
				return wit.MakeValueNull(), nil
			}
			return wit.MakeValueBytes(value.Bytes()), nil
		}
		return arrayToHost(value)
	}
	return wit.Value{}, fmt.Errorf("a value of type %T is no value of SQL; pass a struct or a map as a json.RawMessage", param)
}

func arrayToHost(values reflect.Value) (wit.Value, error) {
	if values.IsNil() {
		return wit.MakeValueNull(), nil
	}
	elements := make([]wit.Value, values.Len())
	// What an element says counts; where there is none, the type of the elements does.
	tag := wit.ValueText
	if kind := values.Type().Elem().Kind(); kind != reflect.Pointer && kind != reflect.Interface && kind != reflect.Slice {
		if element, err := toHost(reflect.Zero(values.Type().Elem()).Interface()); err == nil {
			tag = element.Tag()
		}
	}
	known := false
	for index := range elements {
		element, err := toHost(values.Index(index).Interface())
		if err != nil {
			return wit.Value{}, err
		}
		elements[index] = element
		if element.Tag() == wit.ValueNull {
			continue
		}
		if known && element.Tag() != tag {
			return wit.Value{}, fmt.Errorf("the array mixes types: its element %d is of another one than those before", index)
		}
		tag, known = element.Tag(), true
	}
	switch tag {
	case wit.ValueBoolean:
		return wit.MakeValueBooleanArray(options(elements, wit.Value.Boolean)), nil
	case wit.ValueInt64:
		return wit.MakeValueInt64Array(options(elements, wit.Value.Int64)), nil
	case wit.ValueFloat64:
		return wit.MakeValueFloat64Array(options(elements, wit.Value.Float64)), nil
	case wit.ValueText:
		return wit.MakeValueTextArray(options(elements, wit.Value.Text)), nil
	case wit.ValueBytes:
		return wit.MakeValueBytesArray(options(elements, wit.Value.Bytes)), nil
	case wit.ValueDecimal:
		return wit.MakeValueDecimalArray(options(elements, wit.Value.Decimal)), nil
	case wit.ValueDate:
		return wit.MakeValueDateArray(options(elements, wit.Value.Date)), nil
	case wit.ValueTime:
		return wit.MakeValueTimeArray(options(elements, wit.Value.Time)), nil
	case wit.ValueTimestamp:
		return wit.MakeValueTimestampArray(options(elements, wit.Value.Timestamp)), nil
	case wit.ValueInstant:
		return wit.MakeValueInstantArray(options(elements, wit.Value.Instant)), nil
	case wit.ValueInterval:
		return wit.MakeValueIntervalArray(options(elements, wit.Value.Interval)), nil
	case wit.ValueUuid:
		return wit.MakeValueUuidArray(options(elements, wit.Value.Uuid)), nil
	case wit.ValueJson:
		return wit.MakeValueJsonArray(options(elements, wit.Value.Json)), nil
	}
	return wit.Value{}, fmt.Errorf("an array of %s is no value of SQL; pass its text as a sql.Other", values.Type().Elem())
}

func options[T any](elements []wit.Value, of func(wit.Value) T) []types.Option[T] {
	options := make([]types.Option[T], len(elements))
	for index, element := range elements {
		if element.Tag() != wit.ValueNull {
			options[index] = types.Some(of(element))
		}
	}
	return options
}
