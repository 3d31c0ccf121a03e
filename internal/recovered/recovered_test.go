package recovered_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gotower/gotower/internal/recovered"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDo(t *testing.T) {
	require.NoError(t, recovered.Do("Make", func() error { return nil }))
	require.ErrorIs(t, recovered.Do("Make", func() error { return io.EOF }), io.EOF)

	err := recovered.Do("Make", func() error { panic("boom") })
	require.EqualError(t, err, "Make panicked at recovered_test.go:19: boom")
	err = recovered.Do("Make", func() error { panic(io.EOF) })
	require.ErrorIs(t, err, io.EOF)

	var none map[string]int
	err = recovered.Do("Ready", func() error { none["x"]++; return nil })
	require.EqualError(t, err, "Ready panicked at recovered_test.go:25: assignment to entry in nil map")
}
