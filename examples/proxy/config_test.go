package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func lookup(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := vars[strings.TrimPrefix(name, envPrefix)]
		return v, ok
	}
}

func TestConfigDefaults(t *testing.T) {
	c, err := readConfig(lookup(map[string]string{"DESTINATION_SVC_ADDR": "127.0.0.1:8086"}))
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:4140", c.Listen)
	require.Equal(t, "127.0.0.1:4190", c.Tap)
	require.Equal(t, "127.0.0.1:4191", c.Admin)
	require.Equal(t, 3*time.Second, c.Outbound.FailFast)
	require.Equal(t, 10_000, c.Outbound.QueueCapacity)
	require.False(t, c.Outbound.Quiet)
}

func TestConfigReadsEverything(t *testing.T) {
	c, err := readConfig(lookup(map[string]string{
		"DESTINATION_SVC_ADDR":                   "dst.example:8086",
		"DESTINATION_CONTEXT":                    "ns:emojivoto",
		"OUTBOUND_LISTEN_ADDR":                   "[::1]:0",
		"OUTBOUND_HTTP_QUEUE_CAPACITY":           "7",
		"OUTBOUND_HTTP_FAILFAST_TIMEOUT":         " 250ms",
		"SHUTDOWN_GRACE_PERIOD":                  "1d",
		"OUTBOUND_DISABLE_INFORMATIONAL_HEADERS": "true",
		"OUTBOUND_CONNECT_EXP_BACKOFF_JITTER":    "0.5",
		"TAP_LABELS":                             "pod=web-0, namespace=emojivoto",
	}))
	require.NoError(t, err)
	require.Equal(t, "[::1]:0", c.Listen)
	require.Equal(t, "ns:emojivoto", c.Outbound.ContextToken)
	require.Equal(t, 7, c.Outbound.QueueCapacity)
	require.Equal(t, 250*time.Millisecond, c.Outbound.FailFast)
	require.Equal(t, 24*time.Hour, c.Grace)
	require.True(t, c.Outbound.Quiet)
	require.InDelta(t, 0.5, c.Outbound.Backoff.Jitter, 0)
	require.Equal(t, map[string]string{"pod": "web-0", "namespace": "emojivoto"}, c.Outbound.SourceLabels)
}

func TestConfigReportsEveryProblemAtOnce(t *testing.T) {
	_, err := readConfig(lookup(map[string]string{
		"OUTBOUND_LISTEN_ADDR":                   "localhost:80",
		"OUTBOUND_HTTP_QUEUE_CAPACITY":           "many",
		"OUTBOUND_HTTP_FAILFAST_TIMEOUT":         "3",
		"OUTBOUND_CONNECT_TIMEOUT":               "1.5s",
		"OUTBOUND_DISABLE_INFORMATIONAL_HEADERS": "yes",
		"OUTBOUND_CONNECT_EXP_BACKOFF_JITTER":    "-1",
		"OUTBOUND_CONNECT_EXP_BACKOFF_MIN":       "2m",
		"TAP_LABELS":                             "web",
		"DESTINATION_PROFILE_SUFFIXES":           "a.example, *.example",
		"DESTINATION_PROFILE_NETWORKS":           "10.0.0.0/8,10.0.0.0",
	}))
	for _, problem := range []string{
		`DESTINATION_SVC_ADDR is not set`,
		`OUTBOUND_LISTEN_ADDR="localhost:80": must be ip:port`,
		`OUTBOUND_HTTP_QUEUE_CAPACITY="many": must be a decimal number`,
		`OUTBOUND_HTTP_FAILFAST_TIMEOUT="3": has no unit`,
		`OUTBOUND_CONNECT_TIMEOUT="1.5s": must be digits and a unit`,
		`OUTBOUND_DISABLE_INFORMATIONAL_HEADERS="yes": must be true or false`,
		`OUTBOUND_CONNECT_EXP_BACKOFF_JITTER="-1": must be a number from 0 to 100`,
		`OUTBOUND_CONNECT_EXP_BACKOFF_*: backoff: max 1m0s must be at least min 2m0s`,
		`TAP_LABELS="web": "web" must be key=value`,
		`DESTINATION_PROFILE_SUFFIXES="a.example, *.example": "*.example" must be a DNS name`,
		`DESTINATION_PROFILE_NETWORKS="10.0.0.0/8,10.0.0.0": "10.0.0.0" must be a network`,
	} {
		require.ErrorContains(t, err, problem)
	}
}

func TestEveryVariableIsInTheHelp(t *testing.T) {
	asked := map[string]bool{}
	_, _ = readConfig(func(name string) (string, bool) {
		asked[strings.TrimPrefix(name, envPrefix)] = true
		return "", false
	})
	require.NotEmpty(t, asked)
	for name := range asked {
		require.Contains(t, variables, "  "+name+" ")
	}
	require.Len(t, asked, strings.Count(variables, "\n"), "and nothing else is")
}

func FuzzDuration(f *testing.F) {
	for _, s := range []string{"0", "10ms", " 3s ", "1d", "99999999999d", "-1s", "1.5s", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := parseDuration(s)
		if err == nil && d < 0 || err != nil && d != 0 {
			t.Fatalf("%q is %v, %v", s, d, err)
		}
	})
}
