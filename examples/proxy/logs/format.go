package logs

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// writePlain appends r to b in the text format of linkerd's proxy. The thread number is always 1,
// because Go does not expose threads.
func writePlain(b []byte, h *handler, r slog.Record) []byte {
	// Records that were not made by a logger may lack a time.
	timestamp := r.Time
	if timestamp.IsZero() {
		timestamp = time.Now()
	}
	b = fmt.Appendf(b, "[%10.6fs] %5s ThreadId(01) %s: %s",
		timestamp.Sub(h.start).Seconds(), levelName(r.Level), oneLine(h.target), oneLine(r.Message))
	for _, f := range h.fieldsOf(r) {
		b = append(b, ' ')
		b = append(b, oneLine(f.key)...)
		b = append(b, '=')
		b = appendText(b, text(f.value))
	}
	return b
}

// oneLine escapes unprintable characters, such as line breaks, with which a message could otherwise
// forge another record.
func oneLine(s string) string {
	if !strings.ContainsFunc(s, unprintable) {
		return s
	}
	quoted := strconv.Quote(s)
	// Quote also escapes quotes, which are harmless here and easier to read without the backslash.
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// unprintable reports whether r must be escaped in a log line.
func unprintable(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsPrint(r) }

// appendText appends s to b. It quotes s if it is empty or contains a space, a quote, "=" or an
// unprintable character, so that the fields of a line can be told apart.
func appendText(b []byte, s string) []byte {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return unprintable(r) || r == ' ' || r == '"' || r == '=' }) {
		return strconv.AppendQuote(b, s)
	}
	return append(b, s...)
}

// text returns v as text. Errors are handled apart, because their method may panic.
func text(v slog.Value) string {
	// Any also returns values of other kinds, which cannot be errors.
	if err, ok := v.Any().(error); ok && v.Kind() == slog.KindAny {
		return errorText(err)
	}
	return v.String()
}

// errorText returns err.Error(). If that panics, it returns <nil> for a nil pointer and otherwise a
// description of the panic, as slog's handlers do.
func errorText(err error) (s string) {
	defer func() {
		if r := recover(); r != nil {
			if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && v.IsNil() {
				s = "<nil>"
			} else {
				s = fmt.Sprintf("!PANIC: %v", r)
			}
		}
	}()
	return err.Error()
}

// record is a log record in the JSON format of linkerd's proxy.
type record struct {
	Timestamp string   `json:"timestamp"`
	Level     string   `json:"level"`
	Fields    fields   `json:"fields"`
	Target    string   `json:"target"`
	Spans     []string `json:"spans"`
	ThreadID  string   `json:"threadId"`
}

// fields is encoded as a JSON object that keeps the order of its fields. The message comes first.
type fields []field

// MarshalJSON implements [json.Marshaler].
func (fs fields) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, f := range fs {
		if i > 0 {
			b = append(b, ',')
		}
		key, err := json.Marshal(f.key)
		if err != nil {
			return nil, err
		}
		b = append(append(b, key...), ':')
		b = append(b, valueJSON(f.value)...)
	}
	return append(b, '}'), nil
}

// valueJSON encodes numbers and booleans as themselves, and all other values as strings.
func valueJSON(v slog.Value) []byte {
	switch v.Kind() {
	case slog.KindBool, slog.KindInt64, slog.KindUint64, slog.KindFloat64:
		if b, err := json.Marshal(v.Any()); err == nil {
			return b
		}
	// JSON has no type for times.
	case slog.KindTime:
		v = slog.StringValue(v.Time().UTC().Format(time.RFC3339Nano))
	case slog.KindAny, slog.KindString, slog.KindDuration, slog.KindGroup, slog.KindLogValuer:
	}
	b, err := json.Marshal(text(v))
	if err != nil { // cannot happen for a string
		return strconv.AppendQuote(nil, err.Error())
	}
	return b
}

// writeJSON appends r to b in the JSON format of linkerd's proxy.
func writeJSON(b []byte, h *handler, r slog.Record) []byte {
	timestamp := r.Time
	if timestamp.IsZero() {
		timestamp = time.Now()
	}
	recordFields := append(fields{{"message", slog.StringValue(r.Message)}}, h.fieldsOf(r)...)
	line, err := json.Marshal(record{
		Timestamp: timestamp.UTC().Format(time.RFC3339Nano), Level: levelName(r.Level), Fields: recordFields,
		Target: h.target, Spans: []string{}, ThreadID: "ThreadId(1)",
	})
	// The line must still appear, so the error is logged in place of the record.
	if err != nil {
		line = strconv.AppendQuote(nil, "log: "+err.Error())
	}
	return append(b, line...)
}
