package file

import (
	"math"
	"net"
	"strconv"
	"time"
)

// into reads a scalar into field, or notes what is wanted.
func into[T any](field *T, want string, parse func(string) (T, bool)) func(value) {
	return func(v value) {
		text, ok := v.text()
		if !ok {
			return
		}
		parsed, ok := parse(text)
		if !ok {
			v.failf("want %s", want)
			return
		}
		*field = parsed
	}
}

func word(field *string) func(value) {
	return into(field, "a text that is not empty", func(s string) (string, bool) { return s, s != "" })
}

func anyText(field *string) func(value) {
	return into(field, "", func(s string) (string, bool) { return s, true })
}

// boolean takes true and false only: the other words of YAML 1.1 are not
// booleans any more.
func boolean(field *bool) func(value) {
	return into(field, "true or false", parseBool)
}

func parseBool(s string) (value, ok bool) { return s == "true", s == "true" || s == "false" }

const aDuration = "a duration such as 300ms, 10s or 1m30s"

// duration takes 0 and more.
func duration(field *time.Duration) func(value) {
	return into(field, aDuration, func(s string) (time.Duration, bool) {
		d, err := time.ParseDuration(s)
		return d, err == nil && d >= 0
	})
}

// signedDuration takes what linkerd's controller takes.
func signedDuration(field *time.Duration) func(value) {
	return into(field, aDuration, func(s string) (time.Duration, bool) {
		d, err := time.ParseDuration(s)
		return d, err == nil
	})
}

func count(field *int, most int) func(value) {
	return into(field, "a whole number from 0 to "+strconv.Itoa(most), func(s string) (int, bool) {
		n, err := strconv.ParseUint(s, 10, 31)
		return int(n), err == nil && n <= uint64(most)
	})
}

func count32(field *uint32, most uint32) func(value) {
	return into(field, "a whole number from 0 to "+strconv.FormatUint(uint64(most), 10), func(s string) (uint32, bool) {
		n, err := strconv.ParseUint(s, 10, 32)
		return uint32(n), err == nil && n <= uint64(most)
	})
}

func number(field *float64) func(value) {
	return into(field, "a number from 0", func(s string) (float64, bool) {
		f, err := strconv.ParseFloat(s, 64)
		return f, err == nil && f >= 0 && !math.IsInf(f, 0)
	})
}

func parsePort(s string) (uint16, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil && n > 0
}

// withPort returns an authority with its own port, or with the one given.
func withPort(authority string, port uint16) string {
	if _, _, err := net.SplitHostPort(authority); err == nil {
		return authority
	}
	return net.JoinHostPort(authority, strconv.Itoa(int(port)))
}

// labels reads a mapping of texts.
func labels(field *map[string]string) func(value) {
	return func(v value) {
		read := make(map[string]string, len(v.n.Content)/2)
		v.each(func(key, item value) {
			if key.n.Value == "" {
				key.failf("a label without a name")
			}
			if text, ok := item.text(); ok {
				read[key.n.Value] = text
			}
		})
		if len(read) > 0 {
			*field = read
		}
	}
}
