package layer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

// slotsStep is one step of the model: a call for a key, the end of an open call, or some
// time.
type slotsStep struct{ kind, key, n int }

func drawSlotsSteps(rt *rapid.T) []slotsStep {
	return rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) slotsStep {
		return slotsStep{
			kind: rapid.IntRange(0, 9).Draw(rt, "kind"),
			key:  rapid.IntRange(0, 5).Draw(rt, "key"),
			n:    rapid.IntRange(0, 1000).Draw(rt, "n"),
		}
	}), 1, 120).Draw(rt, "steps")
}

type slotsOpen struct {
	key    int
	body   io.ReadCloser
	cancel context.CancelFunc
}

// slotsModel drives a layer that holds slots until the end of the body. It compares the
// layer with a list of open bodies.
type slotsModel struct {
	t      *testing.T
	svc    layer.Service[slotsStep, *response]
	admits func(key int) bool // what the layer should do, before the call
	check  func() string      // what it should say of itself
	open   []slotsOpen
}

// slotsLeaf returns an open body, at once or after some time, or fails or panics.
var slotsLeaf = layer.Func[slotsStep, *response](func(_ context.Context, s slotsStep) (*response, error) {
	time.Sleep(time.Duration(s.n) * time.Millisecond)
	switch s.kind {
	case 4:
		return nil, context.DeadlineExceeded
	case 5:
		panic(errSlots)
	}
	return bodyOf("some words"), nil
})

var errSlots = errors.New("planned")

func (m *slotsModel) run(steps []slotsStep) (problem string) {
	defer func() {
		for _, o := range m.open {
			o.cancel()
		}
	}()
	for i, s := range steps {
		if s.kind <= 5 {
			problem = m.call(s)
		} else if len(m.open) > 0 {
			m.end(s)
		}
		synctest.Wait()
		if problem == "" {
			problem = m.check()
		}
		if problem != "" {
			return fmt.Sprintf("step %d %+v: %s", i, s, problem)
		}
	}
	return ""
}

func (m *slotsModel) call(s slotsStep) string {
	want := m.admits(s.key)
	ctx, cancel := context.WithCancel(m.t.Context())
	rsp, err := m.callSafely(ctx, s)
	admitted := !errors.Is(err, layer.ErrNotReady)
	if err == nil {
		m.open = append(m.open, slotsOpen{s.key, rsp.Body, cancel})
	} else {
		cancel()
	}
	if admitted != want {
		return fmt.Sprintf("admitted: %v, want %v; %v", admitted, want, err)
	}
	return ""
}

func (m *slotsModel) callSafely(ctx context.Context, s slotsStep) (rsp *response, err error) {
	defer func() {
		if recover() != nil {
			err = errSlots
		}
	}()
	return m.svc.Call(ctx, s)
}

func (m *slotsModel) end(s slotsStep) {
	i := s.n % len(m.open)
	o := m.open[i]
	m.open = append(m.open[:i:i], m.open[i+1:]...)
	switch s.kind {
	case 6:
		_, _ = io.ReadAll(o.body)
	case 7:
		_ = o.body.Close()
	}
	o.cancel()
}
