package setting_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/internal/setting"
	"github.com/gotower/gotower/layer"
)

type service = layer.Service[string, string]

// named is a service that appends its name to requests.
type named struct {
	service

	name string
	err  error // of Ready; nil means to wait until its context ends
}

func (n *named) Call(ctx context.Context, req string) (string, error) {
	return n.service.Call(ctx, req+n.name)
}

func (n *named) Ready(ctx context.Context) error {
	if n.err == nil {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return n.err
}

func echo(_ context.Context, req string) (string, error) { return req, nil }

func TestLayer(t *testing.T) {
	s := setting.New("a")
	made := 0
	svc := setting.Layer(s, func(name string) layer.Layer[string, string] {
		made++
		if name == "" {
			return nil
		}
		return func(next service) service { return &named{service: next, name: name} }
	})(layer.Func[string, string](echo))
	for _, name := range []string{"a", "b", "", "c"} {
		s.Set(name)
		s.Set(name)
		require.Equal(t, name, s.Get())
		for range 3 {
			rsp, err := svc.Call(t.Context(), "to ")
			require.NoError(t, err)
			require.Equal(t, "to "+name, rsp)
		}
	}
	assert.Equal(t, 4, made)
	assert.Equal(t, "setting_test.named", layer.Describe(svc).Name)
	assert.Nil(t, layer.ClassifierOf(svc))
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = svc.Call(context.Background(), "") }))
}

// Ready does not wait for a layer that was replaced.
func TestLayerReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := setting.New[error](nil)
		svc := setting.Layer(s, func(err error) layer.Layer[string, string] {
			return func(next service) service { return &named{service: next, err: err} }
		})(layer.Func[string, string](echo))
		result := make(chan error, 1)
		go func() { result <- svc.Ready(t.Context()) }()
		synctest.Wait()
		require.Empty(t, result)
		want := errors.New("ready")
		s.Set(want)
		require.Equal(t, want, <-result)

		s.Set(nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, svc.Ready(ctx), context.Canceled)
	})
}

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := setting.New(1)
		ctx, cancel := context.WithCancel(t.Context())
		var seen []int
		s.Follow(ctx, func(v int) { seen = append(seen, v, s.Get()) })
		s.Set(1)
		s.Set(2)
		cancel()
		synctest.Wait()
		s.Set(3)
		assert.Equal(t, []int{1, 1, 2, 2}, seen)
	})
}
