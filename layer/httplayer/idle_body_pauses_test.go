package httplayer

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/layer/tcplayer"
)

// upload is a body in the reading, of a client who pauses.
type upload struct {
	*paced
	done chan error // of all reading
}

func uploading(pauses *SlowBodyQuota, client string, pause time.Duration) *upload {
	l := &line{n: 3, piece: 1, pause: pause, late: make(chan struct{}), once: new(sync.Once)}
	u := &upload{&paced{ReadCloser: l, writer: l, idle: 10 * time.Second, rate: 240, pauses: pauses, client: clientOf(client)}, make(chan error, 1)}
	go func() {
		_, err := io.Copy(io.Discard, u)
		u.done <- err
	}()
	return u
}

// A client may have so many that pause, and all together so many; the others are
// cut when their time is over. Places come back.
func TestBodyPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewSlowBodyQuota(2, 3)
		held := func() int {
			p.mu.Lock()
			defer p.mu.Unlock()
			require.Equal(t, p.held == 0, len(p.clients) == 0)
			return p.held
		}
		began := time.Now()
		slow := func(client string) *upload {
			defer time.Sleep(time.Second) // they fall behind in this order
			return uploading(p, client, time.Hour)
		}
		cut := func(u *upload) {
			t.Helper()
			require.ErrorIs(t, <-u.done, layer.ErrIdleTimeout)
			require.Less(t, time.Since(began), time.Minute)
			u.stop()
		}
		a1, a2, a3 := slow("10.0.0.1:1"), slow("10.0.0.1:2"), slow("10.0.0.1:3")
		b1, b2 := slow("[2001:db8::1]:1"), slow("[2001:db8::2]:1")
		c1 := slow("10.0.0.3:1")
		cut(a3)
		cut(b2)
		cut(c1)
		require.Equal(t, 3, held())
		require.NoError(t, <-a1.done)
		require.GreaterOrEqual(t, time.Since(began), 3*time.Hour, "it may be as slow as it likes")
		require.NoError(t, <-a2.done)
		require.NoError(t, <-b1.done)
		require.Zero(t, held(), "they have ended")

		d := slow("10.0.0.1:1")
		time.Sleep(time.Minute)
		require.Equal(t, 1, held())
		d.stop() // its handler has returned
		require.Zero(t, held())
		require.NoError(t, <-d.done)
		d.stop()
		require.Zero(t, held())

		quick := uploading(p, "10.0.0.1:1", time.Second)
		require.NoError(t, <-quick.done)
		require.Zero(t, held(), "who is in time needs none")
		for _, none := range []*SlowBodyQuota{NewSlowBodyQuota(0, 10), NewSlowBodyQuota(10, 0), NewSlowBodyQuota(-1, -1), nil} {
			u := uploading(none, "10.0.0.1:1", time.Hour)
			require.ErrorIs(t, <-u.done, layer.ErrIdleTimeout)
			u.stop()
		}
	})
}

// Whatever comes and goes, nobody has more than he may, and what is given back is
// all there was.
func TestBodyPausesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		each, all := rapid.IntRange(0, 3).Draw(t, "each"), rapid.IntRange(0, 5).Draw(t, "all")
		p, held, sum := NewSlowBodyQuota(each, all), map[netip.Prefix]int{}, 0
		client := rapid.Custom(func(t *rapid.T) netip.Prefix {
			return clientOf(fmt.Sprintf("10.0.0.%d:1", rapid.IntRange(1, 3).Draw(t, "client")))
		})
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				c := client.Draw(t, "who")
				in := p.enter(c)
				require.Equal(t, held[c] < each && sum < all, in)
				if in {
					held[c]++
					sum++
				}
			},
			"leave": func(t *rapid.T) {
				if c := client.Draw(t, "who"); held[c] > 0 {
					p.leave(c)
					held[c]--
					sum--
				}
			},
			"": func(t *rapid.T) {
				require.Equal(t, sum, p.held)
				for c, n := range held {
					require.Equal(t, n, p.clients[c])
				}
			},
		})
	})
}

func TestClientsOfBodies(t *testing.T) {
	for remote, want := range map[string]string{
		"10.0.0.1:80": "10.0.0.1/32", "[::ffff:10.0.0.1]:80": "10.0.0.1/32", "[2001:db8::1]:80": "2001:db8::/64",
		"[fe80::1%eth0]:80": "fe80::/64", "@": "invalid Prefix", "": "invalid Prefix",
	} {
		require.Equal(t, want, clientOf(remote).String(), remote)
	}
}

// By real connections: in chunks one body may pause for as long as it likes, the
// next may not, and none with a length.
func TestServerLetsChunksPause(t *testing.T) {
	up := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	}))
	pauses := NewSlowBodyQuota(1, 10)
	s := pauses.Allow(NewServer(Handler(endpoint(t, up)), WithMinBodyRate(20*time.Millisecond, 240)))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	begin := func(head string) (conn net.Conn, answer func() (int, string)) {
		conn, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
		accepted, err := l.Accept()
		require.NoError(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = s.Call(t.Context(), accepted)
		}()
		say(conn, "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"+head)
		return conn, func() (int, string) {
			rsp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			require.NoError(t, err)
			body, err := io.ReadAll(rsp.Body)
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
			require.NoError(t, conn.Close())
			<-done
			return rsp.StatusCode, string(body)
		}
	}
	paused := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return layer.Describe(s).State[0].Value == n }, patience, time.Millisecond)
	}
	const chunk = "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
	for range 2 {
		conn, answer := begin(chunk)
		paused(1)
		for _, other := range []string{chunk, "Transfer-Encoding: chunked\r\n\r\n", "Content-Length: 10\r\n\r\nhello"} {
			_, second := begin(other)
			status, _ := second()
			assert.Equal(t, http.StatusRequestTimeout, status, other)
		}
		say(conn, "5\r\nworld\r\n0\r\n\r\n")
		status, body := answer()
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, "helloworld", body)
		paused(0)
	}
	conn, _ := begin(chunk)
	paused(1)
	require.NoError(t, conn.Close()) // who leaves has none
	paused(0)
}

// numbered is a connection that nobody speaks on.
type numbered struct {
	net.Conn
	n int
}

// The layer keeps the contract of what it gives connections to.
func TestBodyPausesConform(t *testing.T) {
	layertest.Run(t, layertest.LayerOf[net.Conn, tcplayer.ByteCount]{
		Layer:    NewSlowBodyQuota(1, 1).Allow,
		Request:  func(i int) net.Conn { return numbered{n: i} },
		Response: func(i int) tcplayer.ByteCount { return tcplayer.ByteCount{Sent: int64(i)} },
	})
}

func BenchmarkBodyPauses(b *testing.B) {
	p := NewSlowBodyQuota(100, 1000)
	client := clientOf("10.0.0.1:80")
	b.ReportAllocs()
	for b.Loop() {
		if p.enter(client) {
			p.leave(client)
		}
	}
}
