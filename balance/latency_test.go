package balance_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
)

const sec = time.Second

func sampled(at balance.Sample) option {
	return balance.WithPolicy[*response](balance.Policy{Sample: at})
}

// stream is a body that can be fed.
func stream() (*response, *io.PipeWriter) {
	r, w := io.Pipe()
	return &response{r}, w
}

// The requests in flight and the latency at each point of a response.
func TestLatencyFirstByte(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		name    string
		opts    []option
		headers time.Duration // from the request to the return of Call
		first   time.Duration // from there to the first byte; 0 means none
		rest    time.Duration // from there to the end
		end     error
		want    time.Duration // the latency
	}{
		{"first byte", nil, sec, sec, 10 * sec, nil, 2 * sec},
		{"first byte of what breaks", []option{neverFailing()}, sec, sec, 10 * sec, broken, 2 * sec},
		{"empty", nil, sec, 0, 3 * sec, nil, 4 * sec},
		{"broken without a byte", nil, sec, 0, 3 * sec, broken, 4 * sec},
		{"at return", []option{balance.WithCompletion(layer.AtReturn[*response])}, sec, sec, sec, nil, sec},
		{"head, in flight to the end", []option{sampled(balance.SampleHeaders)}, sec, sec, 10 * sec, nil, sec},
		{"end", []option{sampled(balance.SampleEnd)}, sec, sec, 10 * sec, nil, 12 * sec},
		{"end of what breaks", []option{sampled(balance.SampleEnd)}, sec, sec, 10 * sec, broken, 12 * sec},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, tt.opts...), servers(1)
				s := ss[0]
				rsp, w := stream()
				s.serve = func(context.Context, string) (*response, error) { time.Sleep(tt.headers); return rsp, nil }
				p.add(s)
				go func() {
					time.Sleep(tt.headers)
					if tt.first > 0 {
						time.Sleep(tt.first)
						_, _ = io.WriteString(w, "x")
					}
					time.Sleep(tt.rest)
					_ = w.CloseWithError(tt.end)
				}()

				rsp, err := p.Call(t.Context(), "")
				require.NoError(t, err)
				open := uint64(1)
				if tt.name == "at return" {
					open = 0
				}
				require.Equal(t, open, p.of(s).Get("in_flight"))
				_, err = io.Copy(io.Discard, rsp.Body)
				require.Equal(t, tt.end, err)
				require.EqualValues(t, 0, p.of(s).Get("in_flight"))
				require.InEpsilon(t, tt.want.Seconds(), p.ewma(s).Seconds(), 1e-6)
			})
		})
	}
}

func TestInFlight(t *testing.T) {
	for name, end := range map[string]func(rsp *response, w *io.PipeWriter, leave context.CancelFunc){
		"end": func(rsp *response, w *io.PipeWriter, _ context.CancelFunc) {
			_ = w.Close()
			_, _ = io.ReadAll(rsp.Body)
		},
		"close":     func(rsp *response, _ *io.PipeWriter, _ context.CancelFunc) { _ = rsp.Body.Close() },
		"abandoned": func(_ *response, _ *io.PipeWriter, leave context.CancelFunc) { leave() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t), servers(1)
				rsp, w := stream()
				ss[0].serve = func(context.Context, string) (*response, error) { return rsp, nil }
				p.add(ss...)
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				rsp, err := p.Call(ctx, "")
				require.NoError(t, err)
				time.Sleep(time.Hour)
				require.EqualValues(t, 1, p.of(ss[0]).Get("in_flight"))
				require.EqualValues(t, 1, p.of(ss[0]).Get("picks"))
				end(rsp, w, leave)
				synctest.Wait()
				require.EqualValues(t, 0, p.of(ss[0]).Get("in_flight"))
				_ = rsp.Body.Close()
				require.EqualValues(t, 0, p.of(ss[0]).Get("in_flight"), "once")
			})
		})
	}
}

func TestLatencyOfErrors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1)
		ss[0].serve = func(context.Context, string) (*response, error) { time.Sleep(sec); return nil, io.ErrUnexpectedEOF }
		p.add(ss...)
		require.Error(t, p.send(t.Context()))
		require.InEpsilon(t, sec, p.ewma(ss[0]), 0.001)
		require.EqualValues(t, 0, p.of(ss[0]).Get("in_flight"))
	})
}

func TestLatencyCanceled(t *testing.T) {
	for _, tt := range []struct {
		name   string
		waited time.Duration
		want   time.Duration
	}{
		{"less than expected", 10 * time.Millisecond, 30 * time.Millisecond},
		{"more than expected", 300 * time.Millisecond, 300 * time.Millisecond},
	} {
		for at, serve := range map[string]func(ctx context.Context, _ string) (*response, error){
			"in Call": func(ctx context.Context, _ string) (*response, error) { <-ctx.Done(); return nil, ctx.Err() },
			"before the first byte": func(context.Context, string) (*response, error) {
				rsp, _ := stream()
				return rsp, nil
			},
		} {
			t.Run(tt.name+" "+at, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{Decay: time.Hour})), servers(1)
					ss[0].serve = serve
					p.add(ss...)
					ctx, leave := context.WithTimeout(t.Context(), tt.waited)
					defer leave()
					rsp, err := p.Call(ctx, "")
					if err == nil {
						<-ctx.Done()
						defer rsp.Body.Close()
					}
					synctest.Wait()
					require.InEpsilon(t, tt.want, p.ewma(ss[0]), 0.001)
					require.EqualValues(t, 0, p.of(ss[0]).Get("in_flight"))
				})
			})
		}
	}
}

// Many canceled requests do not change the estimate.
func TestLatencyManyCanceled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{Decay: sec})), servers(1)
		p.add(ss[0].after(func() time.Duration { return 20 * time.Millisecond }))
		require.NoError(t, p.send(t.Context()))
		ss[0].hang()
		for range 200 {
			ctx, leave := context.WithTimeout(t.Context(), 5*time.Millisecond)
			require.Error(t, p.send(ctx))
			leave()
		}
		require.Equal(t, 20*time.Millisecond, p.ewma(ss[0]))
	})
}

// A cancellation after the first byte leaves its latency.
func TestLatencyCanceledAfterFirstByte(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{Decay: time.Hour})), servers(1)
		rsp, w := stream()
		ss[0].serve = func(context.Context, string) (*response, error) { return rsp, nil }
		p.add(ss...)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		rsp, err := p.Call(ctx, "")
		require.NoError(t, err)
		go func() { time.Sleep(50 * time.Millisecond); _, _ = io.WriteString(w, "x") }()
		_, err = rsp.Body.Read(make([]byte, 1))
		require.NoError(t, err)
		time.Sleep(time.Minute)
		leave()
		synctest.Wait()
		require.InEpsilon(t, 50*time.Millisecond, p.ewma(ss[0]), 0.02)
	})
}

func TestInFlightPanic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1)
		ss[0].serve = func(context.Context, string) (*response, error) { panic("boom") }
		p.add(ss...)
		require.PanicsWithValue(t, "boom", func() { _ = p.send(t.Context()) })
		require.EqualValues(t, 0, p.of(ss[0]).Get("in_flight"))
	})
}

func TestPolicyTimes(t *testing.T) {
	for _, tt := range []struct {
		name        string
		policy      balance.Policy
		first, then time.Duration // expected at first, and after a response of 1 s and one of 500 ms a second later
	}{
		{"defaults", balance.Policy{}, 30 * time.Millisecond, 949 * time.Millisecond},
		{"Decay", balance.Policy{Decay: sec}, 30 * time.Millisecond, 661 * time.Millisecond},
		{"the least Decay", balance.Policy{Decay: time.Millisecond}, 30 * time.Millisecond, 500 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, balance.WithPolicy[*response](tt.policy)), servers(1)
				took := sec
				p.add(ss[0].after(func() time.Duration { return took }))
				require.Equal(t, tt.first, p.ewma(ss[0]))
				require.NoError(t, p.send(t.Context()))
				took = sec / 2
				time.Sleep(sec / 2)
				require.NoError(t, p.send(t.Context()))
				require.InDelta(t, tt.then, p.ewma(ss[0]), float64(time.Millisecond))
			})
		})
	}
}

// upgraded is the body of a connection that was upgraded, and is silent.
type upgraded struct {
	lasting
	io.Writer
}

// The latency of an upgraded connection is that of its headers.
func TestLatencyUpgrade(t *testing.T) {
	for sample, want := range map[balance.Sample]time.Duration{
		balance.SampleFirstByte: 10 * time.Millisecond, balance.SampleHeaders: 10 * time.Millisecond, balance.SampleEnd: time.Hour,
	} {
		bubble(t, func(t *testing.T) {
			p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{Sample: sample})), servers(1)
			over := make(chan struct{})
			ss[0].serve = func(context.Context, string) (*response, error) {
				time.Sleep(10 * time.Millisecond)
				return &response{&upgraded{lasting{end: over, with: io.EOF, before: true}, io.Discard}}, nil
			}
			p.add(ss...)
			rsp, err := p.Call(t.Context(), "")
			require.NoError(t, err)
			time.Sleep(time.Hour)
			if sample != balance.SampleEnd {
				require.InDelta(t, want, p.ewma(ss[0]), float64(time.Microsecond), "%v", sample)
			}
			require.EqualValues(t, 1, p.Snapshot()[0].InFlight)
			close(over)
			_, err = rsp.Body.Read(nil)
			require.Equal(t, io.EOF, err)
			require.EqualValues(t, 1, p.Snapshot()[0].InFlight, "the server may still read")
			require.NoError(t, rsp.Body.Close())
			require.Zero(t, p.Snapshot()[0].InFlight)
			require.InDelta(t, want, p.ewma(ss[0]), float64(time.Second), "%v", sample)
		})
	}
}
