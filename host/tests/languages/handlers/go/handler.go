// Package suite does what the payload says; what it finds is in the tables.
package suite

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"time"

	"hapax"
	"hapax/config"
	"hapax/log"
	"hapax/outbox"
	"hapax/sql"
)

func Handle(message hapax.Message) error {
	word, err := message.Text()
	if err != nil {
		return err
	}
	switch word {
	case "tour":
		return tour(message)
	case "values":
		return values()
	case "arrays":
		return arrays()
	case "reject":
		return hapax.Reject("not today: ä😀")
	case "retry":
		return hapax.RetryAfter(time.Millisecond, "later: ä😀")
	case "error":
		return errors.New("out of order")
	case "unique":
		_, err := sql.Execute("INSERT INTO samples (number) VALUES ($1)", 1)
		return err
	case "wrong":
		_, err := sql.Execute("INSERT INTO samples (number, i) VALUES (9, $1)", "five")
		return err
	case "panic":
		panic("out of order")
	case "memory":
		var all [][]byte
		for {
			all = append(all, make([]byte, 1<<20))
		}
	case "time":
		for number := 0; ; number++ {
			if number < 0 {
				number = 0
			}
		}
	}
	return hapax.Reject("no such word: %s", word)
}

func tell(name string, value any) error {
	_, err := sql.Execute("INSERT INTO told (name, value) VALUES ($1, $2)", name, value)
	return err
}

func tour(message hapax.Message) error {
	if err := tell("attempt", strconv.Itoa(message.Attempt)); err != nil {
		return err
	}
	header, err := message.HeaderText("MESSAGE-ID")
	if err != nil {
		return err
	}
	if absent, _ := message.HeaderText("absent"); absent != nil || header == nil {
		return hapax.Reject("other headers")
	}
	currency, err := config.Require("currency")
	if err != nil {
		return err
	}
	found, err := sql.QueryOne[struct {
		Great   int64
		TheBlob []byte
		Word    sql.UUID `sql:"renamed"`
		Absent  *int64
	}]("SELECT CAST($1 AS bigint) AS great, x AS the_blob, CAST($2 AS text) AS renamed, CAST(NULL AS bigint) AS absent FROM samples WHERE number = 1", 9007199254740993, "w")
	if err != nil {
		return err
	}
	if found.Absent != nil || found.Word != "w" {
		return hapax.Reject("other columns")
	}
	for name, value := range map[string]any{
		"header":  header,
		"config":  currency,
		"nothing": nil,
		"great":   strconv.FormatInt(found.Great, 10),
		"blob":    hex.EncodeToString(found.TheBlob),
	} {
		if err := tell(name, value); err != nil {
			return err
		}
	}
	if err := sql.Savepoint(func() error { return tell("kept", "y") }); err != nil {
		return err
	}
	undone := sql.Savepoint(func() error {
		if err := tell("gone", "x"); err != nil {
			return err
		}
		if _, err := outbox.Publish(outbox.Message{Subject: "gone", Payload: []byte("never")}); err != nil {
			return err
		}
		return tell("kept", "z")
	})
	if err := tell("unique", hapax.Code(undone)); err != nil {
		return err
	}
	gone, err := sql.QueryOptional[string]("SELECT name FROM told WHERE name = $1", "gone")
	if err != nil || gone != nil {
		return errors.Join(err, errors.New("it is there"))
	}
	sum := int64(0)
	for number, err := range sql.Each[int64]("SELECT number FROM samples ORDER BY number") {
		if err != nil {
			return err
		}
		sum += number
	}
	if _, err := sql.ExecuteMany("INSERT INTO told (name, value) VALUES ($1, $2)", [][]any{{"cursor", strconv.FormatInt(sum, 10)}}); err != nil {
		return err
	}
	// What a field can't take is an error that names both.
	_, err = sql.QueryOne[struct{ Amount int64 }]("SELECT t AS amount FROM samples WHERE number = 1")
	if err == nil || err.Error() != "column `amount` for the field Amount of struct { Amount int64 }: it is text, and not int64" {
		return hapax.Reject("another error: %v", err)
	}
	_, err = outbox.Publish(outbox.Message{Subject: "told", Key: "k", JSON: map[string]any{"great": found.Great}, Headers: map[string]string{"Kind": "tour"}})
	log.Info("toured", "great", found.Great)
	return err
}

// All kinds of values: those of the table as they come, and one row of Go's own.
func values() error {
	rows, err := sql.Query[sql.Row]("SELECT * FROM samples ORDER BY number")
	if err != nil {
		return err
	}
	rows = append(rows, sql.Row{
		"number": 100,
		"b":      true,
		"i":      int64(math.MinInt64),
		"f":      0.1,
		"t":      "ä😀",
		"x":      []byte{0, 255},
		"n":      sql.Decimal("0.10"),
		"d":      sql.Date{Year: 2024, Month: 2, Day: 29},
		"h":      sql.Time{Hour: 12, Minute: 34, Second: 56, Microsecond: 1},
		"ts":     sql.Timestamp{Date: sql.Date{Year: 2024, Month: 2, Day: 29}, Time: sql.Time{Hour: 12}},
		"at":     time.Date(2024, 2, 29, 12, 34, 56, 123_000_000, time.UTC),
		"iv":     sql.Interval{Months: 1, Days: -2, Microseconds: 3_500_000},
		"u":      sql.UUID("00112233-4455-6677-8899-aabbccddeeff"),
		"j":      json.RawMessage(`{"a":[1,true,null]}`),
	})
	for _, row := range rows {
		if _, err := sql.Execute(
			"INSERT INTO copies (number, b, i, f, t, x, n, d, h, ts, at, iv, u, j) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
			row["number"], row["b"], row["i"], row["f"], row["t"], row["x"], row["n"], row["d"], row["h"], row["ts"], row["at"], row["iv"], row["u"], row["j"],
		); err != nil {
			return err
		}
	}
	return nil
}

func arrays() error {
	rows, err := sql.Query[sql.Row]("SELECT * FROM array_samples ORDER BY number")
	if err != nil {
		return err
	}
	word := "ä"
	rows = append(rows, sql.Row{
		"number": 100,
		"ia":     []any{int64(math.MinInt64), nil},
		"ta":     []*string{&word, nil},
		"ba":     []bool{true},
		"fa":     []float64{0.1},
		"na":     []sql.Decimal{"0.10"},
		"o":      sql.Other{TypeName: "inet", Text: "192.0.2.2"},
	})
	for _, row := range rows {
		if _, err := sql.Execute("INSERT INTO array_copies (number, ia, ta, ba, fa, na, o) VALUES ($1, $2, $3, $4, $5, $6, $7)",
			row["number"], row["ia"], row["ta"], row["ba"], row["fa"], row["na"], row["o"]); err != nil {
			return err
		}
	}
	return nil
}
