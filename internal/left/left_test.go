package left_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gotower/gotower/internal/left"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWhy(t *testing.T) {
	for cause, want := range map[error]string{
		nil:                      "the caller has gone",
		errors.New("gone home"):  "the caller has gone",
		context.DeadlineExceeded: "its time was over",
		fmt.Errorf("over the limit of 2s a try: %w", context.DeadlineExceeded): "its time was over",
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		require.Equal(t, want, left.Why(ctx), cause)
	}
}
