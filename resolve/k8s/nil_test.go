package k8s

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gotower/gotower/resolve"
)

func TestInvalidArguments(t *testing.T) {
	require.NotNil(t, New(fake.NewClientset(), nil))
	for want, f := range map[string]func(){
		"k8s: New: the client is nil": func() { New(nil) },
		`k8s: WithNamespace: "a_b" has the character '_'; there may be a-z, 0-9 and -`: func() { WithNamespace("a_b") },
		"k8s: backoff: max 1s must be at least min 2s":                                 func() { WithBackoff(resolve.Backoff{Min: 2e9, Max: 1e9}) },
	} {
		assert.PanicsWithValue(t, want, f)
	}
}

// A panic of the client is an error of the streams, and the request is repeated.
func TestClientPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(svc("web", 80), slice("a", "web", 80, at("10.0.0.1")))
		bug := func(string, string) error { panic("a bug in the transport") }
		c.refuseAs(bug)
		f := follows(t, New(c.client), "web.default:80")
		defer f.stop()
		time.Sleep(time.Second)
		synctest.Wait()
		require.NotEmpty(t, f.errs)
		require.ErrorContains(t, f.errs[0], "a bug in the transport")
		c.heal()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, "replace 10.0.0.1:80", f.yielded[len(f.yielded)-1])
	})
}
