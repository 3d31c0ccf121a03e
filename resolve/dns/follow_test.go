package dns

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
)

// The file is read at each lookup, and its mistakes are ignored.
func TestResolvConfChanges(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	synctest.Test(t, func(t *testing.T) {
		one, other := &server{}, &server{}
		one.put("web", "web.test. 1 A 10.0.0.1")
		other.put("web", "web.test. 1 A 10.0.0.2")
		n := network{"10.1.0.1:53": one, "10.1.0.2:53": other}
		r := New(WithResolvConf(file), dialer(n.dial), WithIPv4Only(), WithBackoff(resolve.Backoff{Min: time.Second, Max: time.Second}))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		write("nameserver 10.1.0.1\n")
		w := watch(ctx, r, "web.test:80")
		assert.Equal(t, []string{"replace 10.0.0.1:80"}, w.take())
		write("nameserver 10.1.0.2\n")
		time.Sleep(6 * time.Second)
		assert.Equal(t, []string{"replace 10.0.0.2:80"}, w.take())
		write("\nnameserver ten\nnameserver 10.1.0.1\n")
		time.Sleep(6 * time.Second)
		assert.Equal(t, []string{"replace 10.0.0.1:80"}, w.take())
		write("nameserver 10.1.0.1\nsearch test\n")
		time.Sleep(2 * time.Second)
		assert.Empty(t, w.take())
		assert.Equal(t, []string{"replace 10.0.0.1:80"}, watch(ctx, r, "web:80").take())
	})
}
