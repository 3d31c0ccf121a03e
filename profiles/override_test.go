package profiles

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/layer"
)

func TestOverrideDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "1ms": time.Millisecond, " 2s ": 2 * time.Second, "3m": 3 * time.Minute, "4h": 4 * time.Hour, "5d": 120 * time.Hour,
	} {
		d, ok := overrideDuration(text)
		assert.True(t, ok, text)
		assert.Equal(t, want, d, text)
	}
	for _, text := range []string{"", "1", "-1s", "1.5s", "s", "1us", "99999999999999999999s", "200000d", "1s1s"} {
		_, ok := overrideDuration(text)
		assert.False(t, ok, text)
	}
}

func TestOverrideRetry(t *testing.T) {
	header := func(pairs ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(pairs); i += 2 {
			h.Set(pairs[i], pairs[i+1])
		}
		return h
	}
	own := &Retry{Max: 5, MaxBodyBytes: 1, Statuses: []Status{{503, 503}}, LastUnlimited: true}
	failures := &Retry{NonIdempotent: true}
	byDefault := Retry{
		Max: 1, NonIdempotent: true, WithoutBudget: true, Statuses: []Status{}, LastUnlimited: true,
		Backoff: layer.Backoff{Min: 25 * time.Millisecond, Max: 250 * time.Millisecond, Jitter: 1},
	}
	with := func(r Retry, f func(*Retry)) *Retry { f(&r); return &r }
	for _, tt := range []struct {
		header  http.Header
		of      *Retry
		want    *Retry
		timeout time.Duration
	}{
		{header("L5d-Timeout", "1s"), nil, nil, time.Minute},
		{header("L5d-Timeout", "1s"), own, own, time.Minute},
		{header("L5d-Retry-Http", "5xx, x,429,600,599-500,Gateway-Error"), nil, with(byDefault, func(r *Retry) {
			r.Statuses = []Status{{500, 599}, {429, 429}, {502, 504}}
		}), time.Minute},
		{header("L5d-Retry-Http", "x"), failures, with(*failures, func(r *Retry) { r.Statuses = []Status{} }), time.Minute},
		{header("L5d-Retry-Grpc", "x"), failures, with(*failures, func(r *Retry) { r.GRPC = []GRPCStatus{} }), time.Minute},
		{header("L5d-Retry-Grpc", "Unavailable,ok,internal"), own, with(*own, func(r *Retry) { r.GRPC = []GRPCStatus{{14, 14}, {13, 13}} }), time.Minute},
		{header("L5d-Retry-Limit", "200", "L5d-Retry-Timeout", "1s"), own, with(*own, func(r *Retry) { r.Max = 99 }), time.Second},
		{header("L5d-Retry-Timeout", "1s"), nil, &byDefault, time.Second},
		{header("L5d-Retry-Limit", "2"), failures, with(*failures, func(r *Retry) { r.Max = 2 }), time.Minute},
		{header("L5d-Retry-Limit", "-1"), nil, nil, time.Minute},
		{header("L5d-Retry-Limit", "0"), own, nil, 0},
		{header("L5d-Retry-Limit", "0"), failures, nil, time.Minute},
	} {
		retry, timeout := overrideRetry(httpFields(tt.header), tt.of, time.Minute)
		assert.Equal(t, tt.want, retry, tt.header)
		assert.Equal(t, tt.timeout, timeout, tt.header)
	}
}
