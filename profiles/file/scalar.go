package file

import (
	"errors"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/internal/yamlfile"
)

// value is a node of the file with its place, for errors. fields are the functions that read the fields of a mapping.
type (
	value  = yamlfile.Value
	fields = yamlfile.Fields
)

// Error is a mistake in a file, or a part of a file that is left out. It has the fields File,
// Line, Column, Field, Value and Reason. The errors of [Parse] and [Source.Watch] join an Error
// for each mistake. Warnings of a [Set] has an Error for each part that is left out.
type Error = yamlfile.Error

// into returns a function that reads a scalar by the function parse and stores it in *field. If
// parse returns false, the returned function reports a mistake. want names the valid
// values in the text of the mistake, such as "want a number".
func into[T any](field *T, want string, parse func(string) (T, bool)) func(value) {
	return yamlfile.Into(field, func(s string) (T, error) {
		parsed, ok := parse(s)
		if !ok {
			return parsed, errors.New("want " + want)
		}
		return parsed, nil
	})
}

// word returns a function that reads a text that must not be empty into field.
func word(field *string) func(value) {
	return into(field, "a text that is not empty", func(s string) (string, bool) { return s, s != "" })
}

// anyText returns a function that reads a text into field.
func anyText(field *string) func(value) {
	return into(field, "", func(s string) (string, bool) { return s, true })
}

// parseBool parses "true" or "false".
func parseBool(s string) (value, ok bool) { return s == "true", s == "true" || s == "false" }

// aDuration describes what is wanted, for the text of a mistake.
const aDuration = "a duration such as 300ms, 10s or 1m30s"

// duration returns a function that reads a duration of at least 0 into field.
func duration(field *time.Duration) func(value) {
	return into(field, aDuration, func(s string) (time.Duration, bool) {
		d, err := time.ParseDuration(s)
		return d, err == nil && d >= 0
	})
}

// signedDuration returns a function that reads a duration into field. The duration may be
// negative, because linkerd's controller accepts negative durations.
func signedDuration(field *time.Duration) func(value) {
	return into(field, aDuration, func(s string) (time.Duration, bool) {
		d, err := time.ParseDuration(s)
		return d, err == nil
	})
}

// count returns a function that reads a whole number from 0 to most into field.
func count[N int | uint32](field *N, most N) func(value) {
	return into(field, "a whole number from 0 to "+strconv.FormatUint(uint64(most), 10), func(s string) (N, bool) {
		n, err := strconv.ParseUint(s, 10, 32)
		return N(n), err == nil && n <= uint64(most)
	})
}

// number returns a function that reads a number of at least 0 into field.
func number(field *float64) func(value) {
	return into(field, "a number from 0", func(s string) (float64, bool) {
		f, err := strconv.ParseFloat(s, 64)
		return f, err == nil && f >= 0 && !math.IsInf(f, 0)
	})
}

// parsePort parses a port from 1 to 65535.
func parsePort(s string) (uint16, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil && n > 0
}

// withPort returns the key of a target, with port added if the key is a DNS name or an IP address
// without a port.
func withPort(key string, port uint16) string {
	host := strings.Trim(key, "[]")
	if _, err := netip.ParseAddr(host); err != nil && !authority.IsDNSName(key) {
		return key
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
