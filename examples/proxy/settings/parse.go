package settings

import (
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gotower/gotower/examples/proxy/logs"
)

func parseText(s string) (string, error) { return s, nil }

// parseGiven returns true for any text, even an empty one. It is for variables that only need to be
// set.
func parseGiven(string) (bool, error) { return true, nil }

// parseRequired accepts any text that is not empty.
func parseRequired(s string) (string, error) {
	if s == "" {
		return "", errors.New("must not be empty")
	}
	return s, nil
}

// parseBool accepts only true and false, as linkerd's proxy does.
func parseBool(s string) (bool, error) {
	if s != "true" && s != "false" {
		return false, errors.New("must be true or false")
	}
	return s == "true", nil
}

// parseNumber parses a whole number that fits into 31 bits, so that it is an int on every system.
func parseNumber(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, errors.New("must be a whole number from 0 to 2147483647")
	}
	return int(n), nil
}

// parseBetween returns a parser for whole numbers from low to high, inclusive.
func parseBetween(low, high uint32) func(string) (uint32, error) {
	return func(s string) (uint32, error) {
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil || n < uint64(low) || n > uint64(high) {
			return 0, errors.New("must be a decimal number from " + strconv.FormatUint(uint64(low), 10) +
				" to " + strconv.FormatUint(uint64(high), 10))
		}
		return uint32(n), nil
	}
}

// parseJitter parses a share of a backoff that is added at random, up to 100 times the backoff.
func parseJitter(s string) (float64, error) {
	f, err := strconv.ParseFloat(s, 64)
	// The negation also rejects NaN.
	if err != nil || !(f >= 0 && f <= 100) {
		return 0, errors.New("must be a number from 0 to 100")
	}
	return f, nil
}

// parseRatio parses a share above 0 and at most 1.
func parseRatio(s string) (float64, error) {
	f, err := strconv.ParseFloat(s, 64)
	// The negation also rejects NaN.
	if err != nil || !(f > 0 && f <= 1) {
		return 0, errors.New("must be a number above 0, and at most 1")
	}
	return f, nil
}

// parseCount parses a whole number above 0.
func parseCount(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil || n == 0 {
		return 0, errors.New("must be a decimal number above 0")
	}
	return int(n), nil
}

var durationSyntax = regexp.MustCompile(`^\s*(\d+)(ms|s|m|h|d)?\s*$`)

// parseDuration parses digits and a unit: ms, s, m, h or d. Only 0 needs no unit.
func parseDuration(s string) (time.Duration, error) {
	m := durationSyntax.FindStringSubmatch(s)
	if m == nil {
		return 0, errors.New("must be digits and a unit: ms, s, m, h or d")
	}
	var unit time.Duration
	switch m[2] {
	case "ms":
		unit = time.Millisecond
	case "s":
		unit = time.Second
	case "m":
		unit = time.Minute
	case "h":
		unit = time.Hour
	case "d":
		unit = 24 * time.Hour
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	// Check before the multiplication, which could overflow.
	switch {
	case err != nil, unit > 0 && n > int64(math.MaxInt64/unit):
		return 0, errors.New("is too long")
	case unit == 0 && n != 0:
		return 0, errors.New("has no unit: ms, s, m, h or d")
	}
	return time.Duration(n) * unit, nil
}

// parseTimeout parses a duration above 0, because a timeout of 0 would fail everything.
func parseTimeout(s string) (time.Duration, error) {
	d, err := parseDuration(s)
	if err == nil && d == 0 {
		err = errors.New("must be above 0")
	}
	return d, err
}

// parseLimit parses a duration. An empty text means 0, which is no limit: linkerd's chart may set
// the variable to an empty text.
func parseLimit(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	return parseDuration(s)
}

// parsePolicy parses the name of a DefaultPolicy.
func parsePolicy(s string) (DefaultPolicy, error) {
	switch p := DefaultPolicy(s); p {
	case Deny, AllAuthenticated, AllUnauthenticated, ClusterAuthenticated, ClusterUnauthenticated, Audit:
		return p, nil
	}
	return "", errors.New("must be deny, all-authenticated, all-unauthenticated, cluster-authenticated, " +
		"cluster-unauthenticated or audit")
}

// parseAccess parses the format of the access log. An empty text means no access log.
func parseAccess(s string) (AccessFormat, error) {
	switch f := AccessFormat(s); f {
	case NoAccessLog, Apache, AccessJSON:
		return f, nil
	}
	return "", errors.New("must be apache or json")
}

// parseFormat reports whether s is json. Like linkerd's proxy, it takes any other text as plain.
func parseFormat(s string) (asJSON bool, err error) { return strings.EqualFold(s, "json"), nil }

// parseUnsafe accepts only "unsafe", which linkerd requires to enable some settings.
func parseUnsafe(s string) (bool, error) {
	if s != "unsafe" {
		return false, errors.New(`must be "unsafe"`)
	}
	return true, nil
}

// parseFilter validates a log filter, and returns it unchanged.
func parseFilter(s string) (string, error) {
	_, err := logs.ParseFilter(s)
	return s, err
}
