package ctxreason_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gotower/gotower/internal/ctxreason"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestText(t *testing.T) {
	for cause, want := range map[error]string{
		nil:                      "canceled by the caller",
		errors.New("gone home"):  "canceled by the caller",
		context.DeadlineExceeded: "deadline exceeded",
		fmt.Errorf("over the limit of 2s a try: %w", context.DeadlineExceeded): "deadline exceeded",
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		require.Equal(t, want, ctxreason.Text(ctx), cause)
	}
}
