package httplayer

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
	xhttp2 "golang.org/x/net/http2" //nolint:depguard // its Framer is the raw client
	"golang.org/x/net/http2/hpack"  //nolint:depguard // of the raw client
)

// attack writes the frames of step i of an attack to a buffer.
type attack func(fr *xhttp2.Framer, i uint32)

// headerBlock encodes a POST request to a path that does not respond, and more
// fields, as literals.
func headerBlock(more ...string) []byte {
	var w bytes.Buffer
	enc := hpack.NewEncoder(&w)
	enc.SetMaxDynamicTableSize(0)
	fields := append([]string{":method", "POST", ":scheme", "http", ":path", "/hang", ":authority", "h"}, more...)
	for i := 0; i < len(fields); i += 2 {
		_ = enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return w.Bytes()[1:] // without the update of the table size, which only the first block may have
}

// attacks are the known attacks on HTTP/2 servers. Each repeats cheap frames.
func attacks() map[string]attack {
	headers := func(fr *xhttp2.Framer, id uint32, end bool) {
		_ = fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: id, BlockFragment: headerBlock(), EndHeaders: true, EndStream: end})
	}
	once := func(first, next attack) attack {
		return func(fr *xhttp2.Framer, i uint32) {
			if i == 0 {
				first(fr, i)
			}
			next(fr, i)
		}
	}
	open := func(fr *xhttp2.Framer, _ uint32) { headers(fr, 1, false) }
	return map[string]attack{
		"rapid reset": func(fr *xhttp2.Framer, i uint32) { // CVE-2023-44487
			headers(fr, 2*i+1, true)
			_ = fr.WriteRSTStream(2*i+1, xhttp2.ErrCodeCancel)
		},
		"MadeYouReset by WINDOW_UPDATE of 0": func(fr *xhttp2.Framer, i uint32) { // CVE-2025-8671
			headers(fr, 2*i+1, true)
			_ = fr.WriteRawFrame(xhttp2.FrameWindowUpdate, 0, 2*i+1, make([]byte, 4))
		},
		"MadeYouReset by window overflow": func(fr *xhttp2.Framer, i uint32) {
			headers(fr, 2*i+1, true)
			_ = fr.WriteWindowUpdate(2*i+1, 1<<31-1)
		},
		"MadeYouReset by DATA after the end": func(fr *xhttp2.Framer, i uint32) {
			headers(fr, 2*i+1, true)
			_ = fr.WriteData(2*i+1, true, nil)
		},
		"MadeYouReset by PRIORITY": func(fr *xhttp2.Framer, i uint32) {
			headers(fr, 2*i+1, true)
			_ = fr.WritePriority(2*i+1, xhttp2.PriorityParam{StreamDep: 2*i + 1})
		},
		"CONTINUATION flood": once(func(fr *xhttp2.Framer, _ uint32) { // CVE-2024-27316
			_ = fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: 1, BlockFragment: headerBlock()})
		}, func(fr *xhttp2.Framer, _ uint32) { _ = fr.WriteContinuation(1, false, make([]byte, 1000)) }),
		"empty CONTINUATION": once(func(fr *xhttp2.Framer, _ uint32) {
			_ = fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: 1, BlockFragment: headerBlock()})
		}, func(fr *xhttp2.Framer, _ uint32) { _ = fr.WriteContinuation(1, false, nil) }),
		"empty DATA": once(open, func(fr *xhttp2.Framer, _ uint32) { _ = fr.WriteData(1, false, nil) }), // CVE-2019-9518
		"padded empty DATA": once(open, func(fr *xhttp2.Framer, _ uint32) {
			_ = fr.WriteRawFrame(xhttp2.FrameData, xhttp2.FlagDataPadded, 1, []byte{0})
		}),
		"PING":         func(fr *xhttp2.Framer, _ uint32) { _ = fr.WritePing(false, [8]byte{}) }, // CVE-2019-9512
		"SETTINGS":     func(fr *xhttp2.Framer, _ uint32) { _ = fr.WriteSettings() },             // CVE-2019-9515
		"PING ack":     func(fr *xhttp2.Framer, _ uint32) { _ = fr.WritePing(true, [8]byte{}) },
		"GOAWAY":       func(fr *xhttp2.Framer, _ uint32) { _ = fr.WriteGoAway(0, xhttp2.ErrCodeNo, nil) },
		"SETTINGS ack": func(fr *xhttp2.Framer, _ uint32) { _ = fr.WriteSettingsAck() },
		"PRIORITY": func(fr *xhttp2.Framer, i uint32) { // CVE-2019-9513
			_ = fr.WritePriority(2*i+1, xhttp2.PriorityParam{Weight: 1})
		},
		"tiny WINDOW_UPDATE": once(open, func(fr *xhttp2.Framer, i uint32) { _ = fr.WriteWindowUpdate(i%2, 1) }),
		"unknown frames":     func(fr *xhttp2.Framer, _ uint32) { _ = fr.WriteRawFrame(0xee, 0, 0, nil) },
		"too many streams":   func(fr *xhttp2.Framer, i uint32) { headers(fr, 2*i+1, false) },
		"HPACK bomb": func(fr *xhttp2.Framer, i uint32) { // CVE-2016-6581
			b := append(headerBlock(), 0x40, 1, 'x', 127, 0x81, 0x1e)
			b = append(b, bytes.Repeat([]byte("a"), 3968)...)
			b = append(b, bytes.Repeat([]byte{0xbe}, 12000)...)
			_ = fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: b, EndHeaders: true})
		},
		"malformed requests": func(fr *xhttp2.Framer, i uint32) {
			_ = fr.WriteHeaders(xhttp2.HeadersFrameParam{
				StreamID: 2*i + 1, BlockFragment: headerBlock("connection", "close"), EndHeaders: true, EndStream: true,
			})
		},
	}
}

// TestServerAttacks runs each attack through a proxy, beside a good client. The
// connection of the attack ends, no request of the good client fails, and no
// request of the attack stays upstream.
func TestServerAttacks(t *testing.T) {
	var held, most atomic.Int64
	up := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/hang" {
			_, _ = io.WriteString(w, "hello")
			return
		}
		n := held.Add(1)
		defer held.Add(-1)
		most.Store(max(most.Load(), n))
		<-r.Context().Done()
	}))
	addr := serve(t, Handler(endpoint(t, up, WithHTTP2())))
	for name, attack := range attacks() {
		t.Run(name, func(t *testing.T) {
			good, stop := client(t, true), make(chan struct{})
			served := make(chan int)
			go func() {
				n := 0
				defer func() { served <- n }()
				for ; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					rsp, err := good.Get("http://" + addr + "/")
					if !assert.NoError(t, err) {
						return
					}
					text, err := io.ReadAll(rsp.Body)
					_ = rsp.Body.Close()
					if !assert.NoError(t, err) || !assert.Equal(t, "hello", string(text)) {
						return
					}
				}
			}()
			code, steps, err := runAttack(t, addr, attack)
			close(stop)
			n := <-served
			require.NoError(t, err)
			t.Logf("ended with %v after %d steps; the good client was served %d times", code, steps, n)
			assert.Equal(t, xhttp2.ErrCodeEnhanceYourCalm, code)
			assert.Positive(t, n)
			assert.LessOrEqual(t, most.Swap(0), int64(2*newServerOptions(nil).MaxStreams))
			require.Eventually(t, func() bool { return held.Load() == 0 }, patience, time.Millisecond)
		})
	}
}

// runAttack repeats an attack until the server ends the connection. It returns the
// code of the GOAWAY.
func runAttack(t *testing.T, addr string, step attack) (code xhttp2.ErrCode, steps uint32, err error) {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer nc.Close()
	require.NoError(t, nc.SetDeadline(time.Now().Add(patience)))
	var out bytes.Buffer
	out.WriteString(xhttp2.ClientPreface)
	fr := xhttp2.NewFramer(&out, nc)
	fr.AllowIllegalWrites = true
	_ = fr.WriteSettings()
	ended := make(chan error, 1)
	go func() {
		err := errors.New("the connection ended without a GOAWAY")
		for {
			f, failed := fr.ReadFrame()
			if failed != nil {
				ended <- err
				return
			}
			if g, ok := f.(*xhttp2.GoAwayFrame); ok {
				code, err = g.ErrCode, nil
			}
		}
	}()
	for {
		for range 20 {
			step(fr, steps)
			steps++
		}
		if _, failed := nc.Write(out.Bytes()); failed != nil {
			return code, steps, <-ended
		}
		out.Reset()
		select {
		case err := <-ended:
			return code, steps, err
		default:
		}
	}
}
