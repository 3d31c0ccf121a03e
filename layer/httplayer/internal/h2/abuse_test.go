package h2

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// TestAttacks runs known attacks beside a client that must not be harmed.
func TestAttacks(t *testing.T) {
	var running, most atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(_ http.ResponseWriter, r *http.Request) {
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		<-r.Context().Done()
	})
	mux.Handle("/length", handler())
	s := serve(t, message.ServerConfig{Handler: mux, MaxStreamResets: 200})
	headers := func(fr *http2.Framer, id uint32, end bool) {
		_ = fr.WriteHeaders(http2.HeadersFrameParam{
			StreamID: id, BlockFragment: block(":method: POST", ":scheme: http", ":path: /", ":authority: h"), EndHeaders: true, EndStream: end,
		})
	}
	for name, attack := range map[string]func(fr *http2.Framer, i uint32){
		"rapid reset": func(fr *http2.Framer, i uint32) {
			headers(fr, 2*i+1, false)
			_ = fr.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		},
		"MadeYouReset by windows": func(fr *http2.Framer, i uint32) {
			headers(fr, 2*i+1, false)
			_ = fr.WriteWindowUpdate(2*i+1, maxWindow)
		},
		"MadeYouReset by DATA": func(fr *http2.Framer, i uint32) {
			headers(fr, 2*i+1, true)
			_ = fr.WriteData(2*i+1, true, nil)
		},
		"PING":     func(fr *http2.Framer, _ uint32) { _ = fr.WritePing(false, [8]byte{}) },
		"PING ack": func(fr *http2.Framer, _ uint32) { _ = fr.WritePing(true, [8]byte{}) },
		"SETTINGS": func(fr *http2.Framer, _ uint32) { _ = fr.WriteSettings() },
		"empty DATA": func(fr *http2.Framer, i uint32) {
			if i == 0 {
				headers(fr, 1, false)
			}
			_ = fr.WriteData(1, false, nil)
		},
		"CONTINUATION": func(fr *http2.Framer, i uint32) {
			if i == 0 {
				_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(get...)})
			}
			_ = fr.WriteContinuation(1, false, nil)
		},
		"PRIORITY": func(fr *http2.Framer, i uint32) {
			_ = fr.WritePriority(2*i+1, http2.PriorityParam{Weight: 1})
		},
		"small WINDOW_UPDATE": func(fr *http2.Framer, i uint32) {
			if i == 0 {
				headers(fr, 1, false)
			}
			_ = fr.WriteWindowUpdate(i%2, 1)
		},
		"unknown frames":   func(fr *http2.Framer, _ uint32) { _ = fr.WriteRawFrame(0xee, 0, 0, nil) },
		"GOAWAY":           func(fr *http2.Framer, _ uint32) { _ = fr.WriteGoAway(0, http2.ErrCodeNo, nil) },
		"too many streams": func(fr *http2.Framer, i uint32) { headers(fr, 2*i+1, false) },
		"HPACK bomb": func(fr *http2.Framer, i uint32) {
			b := append(block(get...)[1:], 0x40, 1, 'x', 127, 0x81, 0x1e)
			b = append(b, bytes.Repeat([]byte("a"), 3968)...)
			b = append(b, bytes.Repeat([]byte{0xbe}, 12000)...)
			_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: b, EndHeaders: true})
		},
		"malformed requests": func(fr *http2.Framer, i uint32) {
			_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block("x: y"), EndHeaders: true, EndStream: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			good := dial(t, s.addr, &ClientConfig{})
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for {
					select {
					case <-stop:
						return
					default:
					}
					rsp, err := transport{good}.RoundTrip(request(t, "GET", s.addr, "/length", nil))
					if !assert.NoError(t, err) {
						return
					}
					_, err = io.Copy(io.Discard, rsp.Body)
					assert.NoError(t, err)
					_ = rsp.Body.Close()
				}
			}()
			most.Store(0)
			code, frames, err := attackServer(t, s.addr, attack)
			close(stop)
			<-stopped
			require.NoError(t, err)
			t.Logf("ended after %d frames with %v; handlers %d", frames, code, most.Load())
			assert.Equal(t, http2.ErrCodeEnhanceYourCalm, code)
			assert.LessOrEqual(t, most.Load(), int64(2*defaultStreams))
			eventually(t, func() bool { return running.Load() == 0 }, "handlers are canceled")
		})
	}
}

// attackServer repeats an attack until the server ends the connection. It
// returns the code of the GOAWAY.
func attackServer(t *testing.T, addr string, attack func(fr *http2.Framer, i uint32)) (code http2.ErrCode, frames uint32, err error) {
	nc, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(testTimeout))
	var out bytes.Buffer
	fr := http2.NewFramer(&out, nc)
	fr.AllowIllegalWrites = true
	out.WriteString(http2.ClientPreface)
	_ = fr.WriteSettings()
	type end struct {
		code http2.ErrCode
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		e := end{err: errors.New("no GOAWAY")}
		for {
			f, err := fr.ReadFrame()
			if err != nil {
				ended <- e
				return
			}
			if g, ok := f.(*http2.GoAwayFrame); ok {
				e = end{code: g.ErrCode}
			}
		}
	}()
	for {
		for range 20 {
			attack(fr, frames)
			frames++
		}
		if _, err := nc.Write(out.Bytes()); err != nil {
			e := <-ended
			return e.code, frames, e.err
		}
		out.Reset()
		select {
		case e := <-ended:
			return e.code, frames, e.err
		default:
		}
	}
}

// TestHonestClients has many cancellations and control frames that must not be
// taken for an attack.
func TestHonestClients(t *testing.T) {
	s := serve(t, message.ServerConfig{MaxStreamResets: 100, Handler: handler()})
	t.Run("cancels answered streams", func(t *testing.T) {
		c := dial(t, s.addr, &ClientConfig{})
		for range 1000 {
			rsp, err := transport{c}.RoundTrip(request(t, "GET", s.addr, "/big", nil))
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
		}
		require.NoError(t, c.Err())
	})
	t.Run("cancels old streams", func(t *testing.T) {
		p := rawClient(t, s.addr)
		for i := range uint32(200) {
			p.headers(2*i+1, true, with(get[:2], ":path: /hang", ":authority: h")...)
		}
		eventually(t, func() bool {
			for _, c := range s.open() {
				c.mu.Lock()
				n := c.slots
				c.mu.Unlock()
				if n == 200 {
					return true
				}
			}
			return false
		}, "the streams are open")
		time.Sleep(youngStream + 50*time.Millisecond)
		for i := range uint32(200) {
			require.NoError(t, p.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
		}
		p.headers(1001, true, with(get[:2], ":path: /length", ":authority: h")...)
		assert.EqualValues(t, 1001, next[*http2.MetaHeadersFrame](p).StreamID)
	})
	t.Run("PING with each response", func(t *testing.T) {
		p := rawClient(t, s.addr)
		for i := range uint32(3000) {
			p.headers(2*i+1, true, with(get[:2], ":path: /length", ":authority: h")...)
			require.NoError(t, p.WritePing(false, [8]byte{}))
			next[*http2.MetaHeadersFrame](p)
		}
	})
}
