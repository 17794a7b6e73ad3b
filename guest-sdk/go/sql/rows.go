package sql

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	wit "hapax/internal/wit/hapax_handler_sql"
)

// Structs that are values, and not rows.
var structs = map[reflect.Type]bool{
	reflect.TypeFor[time.Time](): true,
	reflect.TypeFor[Date]():      true,
	reflect.TypeFor[Time]():      true,
	reflect.TypeFor[Timestamp](): true,
	reflect.TypeFor[Interval]():  true,
	reflect.TypeFor[Other]():     true,
	reflect.TypeFor[Undecoded](): true,
}

// Returns what reads rows of these columns into a T.
func readerOf[T any](columns []wit.Column) (func([]wit.Value, *T) error, error) {
	kind := reflect.TypeFor[T]()
	isText := reflect.PointerTo(kind).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
	switch {
	case kind == reflect.TypeFor[Row]():
		names := make(map[string]bool, len(columns))
		for _, column := range columns {
			if names[column.Name] {
				return nil, fmt.Errorf("two columns are called `%s`: name one with AS", column.Name)
			}
			names[column.Name] = true
		}
		return func(values []wit.Value, into *T) error {
			row := make(Row, len(columns))
			for index, column := range columns {
				row[column.Name] = fromHost(values[index])
			}
			*into = any(row).(T)
			return nil
		}, nil
	case kind.Kind() == reflect.Struct && !structs[kind] && !isText:
		fields, err := fieldsOf(kind, columns)
		if err != nil {
			return nil, err
		}
		return func(values []wit.Value, into *T) error {
			row := reflect.ValueOf(into).Elem()
			for index, column := range columns {
				field := kind.Field(fields[index])
				if err := assign(row.Field(fields[index]), fromHost(values[index])); err != nil {
					return fmt.Errorf("column `%s` for the field %s of %s: %w", column.Name, field.Name, kind, err)
				}
			}
			return nil
		}, nil
	case len(columns) != 1:
		return nil, fmt.Errorf("the query gives %d columns, and a %s takes one: read them into a struct or a sql.Row", len(columns), kind)
	default:
		return func(values []wit.Value, into *T) error {
			if err := assign(reflect.ValueOf(into).Elem(), fromHost(values[0])); err != nil {
				return fmt.Errorf("column `%s`: %w", columns[0].Name, err)
			}
			return nil
		}, nil
	}
}

// Returns the index of the field of each column. Every column has one of its own, and every field a column.
func fieldsOf(kind reflect.Type, columns []wit.Column) ([]int, error) {
	plain := func(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }
	byName := map[string]int{}
	for index := range kind.NumField() {
		field := kind.Field(index)
		tag := field.Tag.Get("sql")
		if !field.IsExported() || tag == "-" {
			continue
		}
		if tag == "" {
			tag = plain(field.Name)
		}
		byName[tag] = index
	}
	fields := make([]int, len(columns))
	taken := map[int]string{}
	for number, column := range columns {
		index, found := byName[column.Name]
		if !found {
			index, found = byName[plain(column.Name)]
		}
		if !found {
			return nil, fmt.Errorf("the query gives a column `%s`, and %s has no field for it", column.Name, kind)
		}
		if other, twice := taken[index]; twice {
			return nil, fmt.Errorf("the columns `%s` and `%s` belong to the same field of %s: name one with AS", other, column.Name, kind)
		}
		fields[number], taken[index] = index, column.Name
	}
	for _, index := range byName {
		if _, found := taken[index]; !found {
			return nil, fmt.Errorf("the query gives no column for the field %s of %s", kind.Field(index).Name, kind)
		}
	}
	return fields, nil
}

// Puts a column's value into a variable, if nothing of it is lost.
func assign(into reflect.Value, value any) error {
	kind := into.Kind()
	if kind == reflect.Interface && into.NumMethod() == 0 {
		if value != nil {
			into.Set(reflect.ValueOf(value))
		}
		return nil
	}
	if value == nil {
		if kind == reflect.Pointer || kind == reflect.Slice {
			into.SetZero()
			return nil
		}
		return fmt.Errorf("it is NULL, and a %s can't be: take a pointer", into.Type())
	}
	if kind == reflect.Pointer {
		into.Set(reflect.New(into.Type().Elem()))
		return assign(into.Elem(), value)
	}
	if given := reflect.ValueOf(value); given.Type() == into.Type() {
		into.Set(given)
		return nil
	}
	text, isText := textOf(value)
	if reader, ok := into.Addr().Interface().(encoding.TextUnmarshaler); ok && isText {
		return reader.UnmarshalText([]byte(text))
	}
	number, isNumber := value.(int64)
	switch kind {
	case reflect.String:
		if isText {
			into.SetString(text)
			return nil
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if isNumber && !into.OverflowInt(number) {
			into.SetInt(number)
			return nil
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if isNumber && number >= 0 && !into.OverflowUint(uint64(number)) {
			into.SetUint(uint64(number))
			return nil
		}
	case reflect.Float32, reflect.Float64:
		if float, ok := value.(float64); ok && (kind == reflect.Float64 || float64(float32(float)) == float || float != float) {
			into.SetFloat(float)
			return nil
		}
	case reflect.Bool:
		// SQLite has no type of its own for it.
		if boolean, ok := value.(bool); ok || isNumber && (number == 0 || number == 1) {
			into.SetBool(boolean || number == 1)
			return nil
		}
	case reflect.Slice:
		return assignSlice(into, value, text, isText)
	}
	if isNumber {
		return fmt.Errorf("%d does not fit into a %s", number, into.Type())
	}
	return fmt.Errorf("it is %s, and not %s", called(value), into.Type())
}

func assignSlice(into reflect.Value, value any, text string, isText bool) error {
	if into.Type().Elem().Kind() == reflect.Uint8 {
		if bytes, ok := value.([]byte); ok {
			into.SetBytes(bytes)
			return nil
		}
		// SQLite gives JSON as text.
		if into.Type() == reflect.TypeFor[json.RawMessage]() && isText && json.Valid([]byte(text)) {
			into.SetBytes([]byte(text))
			return nil
		}
	} else if elements, ok := value.([]any); ok {
		into.Set(reflect.MakeSlice(into.Type(), len(elements), len(elements)))
		for index, element := range elements {
			if err := assign(into.Index(index), element); err != nil {
				return fmt.Errorf("element %d: %w", index, err)
			}
		}
		return nil
	}
	return fmt.Errorf("it is %s, and not %s", called(value), into.Type())
}

// Returns what comes as exact text.
func textOf(value any) (string, bool) {
	switch value := value.(type) {
	case string:
		return value, true
	case Decimal:
		return string(value), true
	case UUID:
		return string(value), true
	case json.RawMessage:
		return string(value), true
	case Other:
		return value.Text, true
	}
	return "", false
}

func called(value any) string {
	switch value := value.(type) {
	case string:
		return "text"
	case []any:
		return "an array"
	case Other:
		return "a value of the database's type " + value.TypeName
	case Undecoded:
		return "a value of the database's type " + value.TypeName + " that could not be decoded"
	}
	return fmt.Sprintf("a %T", value)
}
