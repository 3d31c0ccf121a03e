package main

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// env reads LINKERD2_PROXY_* variables in the syntax of linkerd's proxy, and
// collects every problem, so that a person can mend them all at once.
type env struct {
	lookup   func(string) (string, bool)
	problems []error
}

const envPrefix = "LINKERD2_PROXY_"

func read[T any](e *env, name string, fallback T, parse func(string) (T, error)) T {
	text, ok := e.lookup(envPrefix + name)
	if !ok {
		return fallback
	}
	value, err := parse(text)
	if err != nil {
		e.problems = append(e.problems, fmt.Errorf("%s%s=%q: %w", envPrefix, name, text, err))
		return fallback
	}
	return value
}

func (e *env) require(name, what string) string {
	text, ok := e.lookup(envPrefix + name)
	if !ok || text == "" {
		e.problems = append(e.problems, fmt.Errorf("%s%s is not set: %s", envPrefix, name, what))
	}
	return text
}

func (e *env) text(name, fallback string) string {
	return read(e, name, fallback, func(s string) (string, error) { return s, nil })
}

func (e *env) duration(name string, fallback time.Duration) time.Duration {
	return read(e, name, fallback, parseDuration)
}

func (e *env) number(name string, fallback int) int {
	return read(e, name, fallback, func(s string) (int, error) {
		n, err := strconv.ParseUint(s, 10, 31)
		if err != nil {
			return 0, errors.New("must be a decimal number")
		}
		return int(n), nil
	})
}

func (e *env) ratio(name string, fallback float64) float64 {
	return read(e, name, fallback, func(s string) (float64, error) {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || !(f >= 0 && f <= 100) {
			return 0, errors.New("must be a number from 0 to 100")
		}
		return f, nil
	})
}

func (e *env) flag(name string) bool {
	return read(e, name, false, func(s string) (bool, error) {
		if s != "true" && s != "false" {
			return false, errors.New("must be true or false")
		}
		return s == "true", nil
	})
}

func (e *env) addr(name, fallback string) string {
	return read(e, name, fallback, func(s string) (string, error) {
		if _, err := netip.ParseAddrPort(s); err != nil {
			return "", errors.New("must be ip:port")
		}
		return s, nil
	})
}

var durationSyntax = regexp.MustCompile(`^\s*(\d+)(ms|s|m|h|d)?\s*$`)

// parseDuration reads digits and a unit; only 0 may go without one.
func parseDuration(s string) (time.Duration, error) {
	units := map[string]time.Duration{
		"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour,
	}
	m := durationSyntax.FindStringSubmatch(s)
	if m == nil {
		return 0, errors.New("must be digits and a unit: ms, s, m, h or d")
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	unit := units[m[2]]
	switch {
	case err != nil, unit > 0 && n > int64(1<<63-1)/int64(unit):
		return 0, errors.New("is too long")
	case unit == 0 && n != 0:
		return 0, errors.New("has no unit: ms, s, m, h or d")
	}
	return time.Duration(n) * unit, nil
}

// parseLabels reads "key=value,key=value".
func parseLabels(s string) (map[string]string, error) {
	labels := map[string]string{}
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		key, value, ok := strings.Cut(item, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("%q must be key=value", item)
		}
		labels[key] = value
	}
	return labels, nil
}

// parseNames reads "svc.cluster.local.,example.com"; nothing is no name.
func parseNames(s string) ([]string, error) {
	names := []string{}
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		if strings.ContainsAny(item, ":/* ") || strings.HasPrefix(item, ".") && item != "." {
			return nil, fmt.Errorf("%q must be a DNS name without a port, or \".\" for all", item)
		}
		names = append(names, item)
	}
	return names, nil
}

// parseNetworks reads "10.0.0.0/8,fd00::/8".
func parseNetworks(s string) ([]netip.Prefix, error) {
	var networks []netip.Prefix
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		n, err := netip.ParsePrefix(item)
		if err != nil {
			return nil, fmt.Errorf("%q must be a network such as 10.0.0.0/8", item)
		}
		networks = append(networks, n)
	}
	return networks, nil
}
