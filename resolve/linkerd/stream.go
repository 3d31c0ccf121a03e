package linkerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/oncelog"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/resolve"
)

// Limits has the time limits of each stream, see [WithStreamLimits]. The zero value
// means those of linkerd's chart: 3 s, 5 min and 1 h. A negative field means no limit.
// Time in which the consumer does not read counts only for Lifetime.
type Limits struct {
	// Initial limits the time to the first message other than a Remove, or to the first
	// answer to a health check. It includes connecting. 0 means 3 s.
	Initial time.Duration

	// Idle limits the time between messages, and Lifetime the duration of the stream. At the
	// limit the stream is reopened. Up to a tenth is added at random, so that the streams of
	// many clients do not end together. 0 means 5 min and 1 h. The minimum is 10 s.
	Idle     time.Duration
	Lifetime time.Duration
}

// WithStreamLimits sets the time limits of each stream. They detect a controller that does not
// answer. Lifetime also limits the effect of a lost message. The default is the zero [Limits].
func WithStreamLimits(l Limits) Option {
	return option(func(o *options) { o.limits = stream.Limits(l).OrDefault() })
}

const (
	// healthCheckAfter is the silence before the first health check. Half of
	// Limits.Initial is used if that is less.
	healthCheckAfter = time.Second

	// emptyAfter is the silence after which the service counts as empty. It equals the
	// duration after which stream.Reconnect resets its backoff.
	emptyAfter = 10 * time.Second
)

// errNoAnswer is the error of a stream that exceeded Limits.Initial.
var errNoAnswer = status.Error(codes.DeadlineExceeded, "the controller does not answer")

// watch is the state of one call of Resolve, which opens several streams.
type watch struct {
	*options
	conn    grpc.ClientConnInterface
	target  string
	ignored oncelog.Logger
}

// open opens one Get stream. resolve.Reconnect converts its first Add to a Replace, and
// ends ctx after the stream.
func (w *watch) open(ctx context.Context, _ string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		dog := w.limits.Begin(ctx, errNoAnswer)
		defer dog.Stop()
		defer w.ignored.End()
		err := w.read(dog, func(u resolve.Update) bool { return yield(u, nil) })
		if err != nil {
			yield(resolve.Update{}, w.failure(err))
		}
	}
}

// read reads one stream. It returns the reason why the stream ended, or nil if the
// consumer broke.
func (w *watch) read(dog *stream.Watchdog, yield func(resolve.Update) bool) error {
	if err := dog.Wait(); err != nil {
		return err
	}
	ctx, opened := dog.Context(), time.Now()
	updates, err := destination.NewDestinationClient(w.conn).Get(ctx, &destination.GetDestination{
		Scheme: scheme, Path: w.target, ContextToken: w.contextToken,
	})
	if err != nil {
		return dog.Cause(err)
	}
	r := reader{watch: w, dog: dog, opened: opened, messages: make(chan received), answers: make(chan bool)}
	go receive(ctx, updates, r.messages)
	silent, stopChecks := context.WithCancel(ctx)
	defer stopChecks()
	r.stopChecks = stopChecks
	go w.checkHealth(silent, serverOf(updates.Context()), r.answers)
	for {
		if err := dog.Wait(); err != nil {
			return err
		}
		u, ok, err := r.next()
		if err != nil {
			return dog.Cause(err)
		}
		dog.Pause()
		if ok && !yield(u) {
			return nil
		}
	}
}

// reader converts the events of one stream to updates.
type reader struct {
	*watch
	dog        *stream.Watchdog
	opened     time.Time
	messages   chan received
	answers    chan bool // answers to health checks; true if the server of the stream answered
	stopChecks context.CancelFunc
	empty      <-chan time.Time // receives when silence means an empty set; nil if it does not
}

// next waits for one message, health check answer or time limit. It returns false
// without an update to yield.
func (r *reader) next() (resolve.Update, bool, error) {
	select {
	case <-r.dog.Context().Done():
		return resolve.Update{}, false, r.dog.Context().Err()
	case sameServer := <-r.answers:
		r.dog.Heard()
		if sameServer {
			r.empty = time.After(time.Until(r.opened.Add(emptyAfter)))
		}
		return resolve.Update{}, false, nil
	case <-r.empty:
		r.empty = nil
		return resolve.Update{Kind: resolve.Empty}, true, nil
	case m := <-r.messages:
		if m.err != nil {
			return resolve.Update{}, false, m.err
		}
		r.stopChecks()
		r.empty = nil
		u, ok := update(m.message, r.ignored.Add)
		if ok && u.Kind != resolve.Remove {
			r.dog.Heard()
		}
		return u, ok, nil
	}
}

// received is a message of a stream, or the error at its end.
type received struct {
	message *destination.Update
	err     error
}

// receive sends the messages of a stream to messages until the stream ends. A panic of
// the connection ends the stream.
func receive(ctx context.Context, from grpc.ServerStreamingClient[destination.Update], messages chan<- received) {
	for {
		var message *destination.Update
		err := panics.Do("the connection", func() (err error) {
			message, err = from.Recv()
			return err
		})
		select {
		case messages <- received{message, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// checkHealth sends a gRPC health check after healthCheckAfter, and further ones with a
// backoff until server answers. It sends to answers the first answer and that of
// server: true means that the answer is from server.
//
// The status of an answer does not matter, because any answer proves that the controller runs.
// A gRPC keep-alive would not prove that, because the proxy of the controller answers PINGs.
func (w *watch) checkHealth(ctx context.Context, server string, answers chan<- bool) {
	pause := backoff.Backoff{Min: healthCheckAfter, Max: time.Minute}
	if w.limits.Initial > 0 {
		pause.Min = min(pause.Min, w.limits.Initial/2)
	}
	health, reported := grpc_health_v1.NewHealthClient(w.conn), false
	for n := 0; backoff.Sleep(ctx, pause.Delay(n)) == nil; n++ {
		var from peer.Peer
		var err error
		if panics.Contain(func() { _, err = health.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Peer(&from)) }) != nil {
			continue
		}
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled: // not an answer
			continue
		}
		same := addrOf(&from) == server
		if reported && !same {
			continue
		}
		reported = true
		select {
		case answers <- same:
		case <-ctx.Done():
		}
		if same {
			return
		}
	}
}

// serverOf returns the address of the server of a stream, or "" if it is unknown.
func serverOf(ctx context.Context) string {
	p, _ := peer.FromContext(ctx)
	return addrOf(p)
}

func addrOf(p *peer.Peer) string {
	if p == nil || p.Addr == nil {
		return ""
	}
	return p.Addr.String()
}

// failure returns the error to yield for the end of a stream.
func (w *watch) failure(err error) error {
	if errors.Is(err, io.EOF) {
		err = stream.ErrEnded
	}
	switch status.Code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition:
		return fmt.Errorf("linkerd: get %q: %w: %w", w.target, resolve.ErrUnresolvable, err)
	}
	return fmt.Errorf("linkerd: get %q: %w", w.target, err)
}
