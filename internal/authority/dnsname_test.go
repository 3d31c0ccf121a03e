package authority_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/authority"
)

func TestCheckTarget(t *testing.T) {
	for _, good := range []string{
		"web:80", "web.default.svc.cluster.local:8080", "WEB:1", "web.:65535", "_dns._tcp.x:53", "a-b.c:80", "1.a:80",
		"10.0.0.1.example:80", strings.Repeat("a", 63) + ":80",
	} {
		require.NoError(t, authority.CheckTarget(good), good)
	}
	for bad, why := range map[string]string{
		"":                                       "no port",
		"web":                                    "no port",
		"web:":                                   "port is not",
		"web:0":                                  "port is not",
		"web:65536":                              "port is not",
		"web:http":                               "port is not",
		"web:+80":                                "port is not",
		":80":                                    "not a DNS name",
		".:80":                                   "not a DNS name",
		"10.0.0.1:80":                            "not a DNS name",
		"127.1:80":                               "not a DNS name",
		"2130706433:80":                          "not a DNS name",
		"[::1]:80":                               "not a DNS name",
		"::1:80":                                 "not a DNS name",
		"web..local:80":                          "not a DNS name",
		"-web:80":                                "not a DNS name",
		"web-:80":                                "not a DNS name",
		"we b:80":                                "not a DNS name",
		"wéb:80":                                 "not a DNS name",
		"user@web:80":                            "not a DNS name",
		"http://web:80":                          "not a DNS name",
		"web.local:80:80":                        "not a DNS name",
		"10.0.0.1.:80":                           "not a DNS name",
		strings.Repeat("a", 64) + ":80":          "not a DNS name",
		strings.Repeat("a.", 127) + "aa" + ":80": "not a DNS name",
	} {
		require.ErrorContains(t, authority.CheckTarget(bad), why, bad)
	}
}
