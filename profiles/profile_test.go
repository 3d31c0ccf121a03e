package profiles

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A key of a backend may have any form, except the empty one.
func TestTargetValidate(t *testing.T) {
	for _, key := range []string{"web", "web:80", "default/backend/rule/0", "outbound|80||web", "10.0.0.1:80"} {
		require.NoError(t, Target{Authority: key}.Validate(), key)
	}
	require.EqualError(t, Target{}.Validate(), "no authority")
}

func TestRetryBudgetValidate(t *testing.T) {
	good := RetryBudget{Ratio: 0.2, MinPerSecond: 10, TTL: 10 * time.Second}
	require.NoError(t, good.Validate())
	for _, tt := range []struct {
		what   string
		change func(*RetryBudget)
		err    string
	}{
		{"ttl 1s", func(b *RetryBudget) { b.TTL = time.Second }, ""},
		{"ttl 60s", func(b *RetryBudget) { b.TTL = time.Minute }, ""},
		{"ttl missing", func(b *RetryBudget) { b.TTL = 0 }, "ttl 0s"},
		{"ttl short", func(b *RetryBudget) { b.TTL = time.Second - 1 }, "ttl"},
		{"ttl long", func(b *RetryBudget) { b.TTL = time.Minute + 1 }, "ttl"},
		{"min 0", func(b *RetryBudget) { b.MinPerSecond = 0 }, ""},
		{"min highest", func(b *RetryBudget) { b.MinPerSecond = math.MaxInt32 }, ""},
		{"min too high", func(b *RetryBudget) { b.MinPerSecond = math.MaxInt32 + 1 }, "min per second"},
		{"ratio 0", func(b *RetryBudget) { b.Ratio = 0 }, ""},
		{"ratio 1000", func(b *RetryBudget) { b.Ratio = 1000 }, ""},
		{"ratio above", func(b *RetryBudget) { b.Ratio = 1000.1 }, "ratio"},
		{"ratio below", func(b *RetryBudget) { b.Ratio = -0.1 }, "ratio"},
		{"ratio not a number", func(b *RetryBudget) { b.Ratio = math.NaN() }, "ratio"},
		{"ratio infinite", func(b *RetryBudget) { b.Ratio = math.Inf(1) }, "ratio"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			b := good
			tt.change(&b)
			if tt.err == "" {
				assert.NoError(t, b.Validate())
			} else {
				assert.ErrorContains(t, b.Validate(), tt.err)
			}
		})
	}
}

// The apex is the profile's own name at the port that was asked for.
func TestApex(t *testing.T) {
	for _, tt := range []struct{ name, target, want string }{
		{"", "web:80", "web:80"},
		{"web.default.svc.cluster.local", "web:80", "web.default.svc.cluster.local:80"},
		{"web.default.svc.cluster.local", "10.0.0.1:80", "web.default.svc.cluster.local:80"},
		{"web.default.svc.cluster.local", "[::1]:8080", "web.default.svc.cluster.local:8080"},
		{"web", "web:80", "web:80"},
		{"web", "elsewhere", "elsewhere"},
		{"10.0.0.1", "web:80", "web:80"},
	} {
		got, err := (&Profile{Name: tt.name}).apex(tt.target)
		assert.Equal(t, tt.want, got)
		assert.Equal(t, tt.name == "10.0.0.1", err != nil)
	}
}
