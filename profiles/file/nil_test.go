package file

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInvalidArguments(t *testing.T) {
	require.NotNil(t, New("web.yaml", nil, WithLogger(nil)))
	assert.PanicsWithValue(t, "file: New: the path is empty", func() { New("") })
}

// badHandler panics when a line is written.
type badHandler struct{ slog.Handler }

func (badHandler) Handle(context.Context, slog.Record) error { panic("the disk is full") }

func TestLogHandlerPanics(t *testing.T) {
	path := temp(t, sp("  routes: [{name: a, condition: {pathRegex: '('}}, {name: b, condition: {method: GET}}]\n"))
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(badHandler{slog.NewTextHandler(os.Stderr, nil)})
		w := watch(t, New(path, WithLogger(log)), "web.ns.svc.cluster.local:80")
		w.expect(t, poll, "b")
	})
}
