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
	"github.com/gotower/gotower/internal/freshstack"
	"github.com/gotower/gotower/internal/oncelog"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/resolve"
)

// Limits are the time limits for each stream, see [WithStreamLimits]. A field that is 0 means the
// value in linkerd's Helm chart: 3 s for Initial, 5 min for Idle and 1 h for Lifetime. A negative
// field means no limit. While the consumer handles an update, Idle's timer stops, but Lifetime's
// continues.
type Limits struct {
	// Initial limits the time from the start of a stream, including connecting, to the
	// first message other than a Remove. An answer to a health check also ends this time. 0
	// means 3 s.
	Initial time.Duration

	// Idle limits the time between messages, and Lifetime the duration of the stream. At
	// the limit the stream is reopened. Up to a tenth is added at random, so that the
	// streams of many clients do not end together. 0 means 5 min for Idle and 1 h for
	// Lifetime. A positive value below 10 s counts as 10 s.
	Idle     time.Duration
	Lifetime time.Duration
}

// WithStreamLimits sets the time limits of each stream. They detect a controller that does not
// answer. Lifetime also limits how long a set stays wrong after a lost message. The default is the
// zero [Limits].
func WithStreamLimits(l Limits) Option {
	return func(o *options) { o.limits = stream.Limits(l).OrDefault() }
}

// The times after which a silent stream is examined.
const (
	// healthCheckAfter is the time without messages after which the first health check is
	// sent. If half of Limits.Initial is shorter, the first one is sent after that half.
	healthCheckAfter = time.Second

	// emptyAfter is the time without messages after which the service counts as empty, if
	// the server answers health checks. It equals the duration after which stream.Reconnect
	// resets its backoff.
	emptyAfter = 10 * time.Second
)

// errNoAnswer is the error of a stream that exceeded Limits.Initial.
var errNoAnswer = status.Error(codes.DeadlineExceeded, "the controller does not answer")

// watch has the target and the connection of one call of Resolve. The call opens several Get
// streams, one after the other.
type watch struct {
	*options
	conn    grpc.ClientConnInterface
	target  string
	ignored oncelog.Logger
}

// open opens one Get stream and yields its updates. The caller, resolve.Reconnect, converts
// the first Add to a Replace, and ends ctx when the stream has ended.
func (w *watch) open(ctx context.Context, _ string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		// dog is the watchdog: it ends the stream's context at one of the time limits.
		dog := w.limits.Begin(ctx, errNoAnswer)
		defer dog.Stop()
		defer w.ignored.End() // the next stream may report the same parts, which are then not logged again
		err := w.read(dog, func(u resolve.Update) bool { return yield(u, nil) })
		if err != nil {
			// Reconnect takes an error as the end of this stream, and opens the next one.
			yield(resolve.Update{}, w.failure(err))
		}
	}
}

// read opens one stream, reads its messages and yields their updates. It returns the reason why the
// stream ended, or nil if yield returned false.
func (w *watch) read(dog *stream.Watchdog, yield func(resolve.Update) bool) error {
	// Starts the timer of the Initial limit, which includes the time to connect.
	if err := dog.Wait(); err != nil {
		return err
	}
	ctx, opened := dog.Context(), time.Now()
	var updates grpc.ServerStreamingClient[destination.Update]
	var err error
	// gRPC needs a deep stack to open a stream. On its own goroutine, this one's stack stays small.
	freshstack.Call(func() {
		updates, err = destination.NewDestinationClient(w.conn).Get(ctx, &destination.GetDestination{
			Scheme: scheme, Path: w.target, ContextToken: w.contextToken,
		})
	})
	if err != nil {
		// If the watchdog has ended ctx, its limit is the reason, and not gRPC's error.
		return dog.Cause(err)
	}
	// Both channels are unbuffered, and both senders also stop when ctx ends.
	r := reader{watch: w, dog: dog, opened: opened, updates: updates, first: make(chan received), answers: make(chan bool)}
	go r.receiveFirst()
	checkCtx, stopChecks := context.WithCancel(ctx) // next ends it at the first message
	defer stopChecks()
	// next calls it at the first message: from then on, messages show that the controller answers.
	r.stopChecks = stopChecks
	go w.checkHealth(checkCtx, serverOf(updates.Context()), r.answers)
	for {
		// Starts the timer for the next message, or returns the error of a limit that has passed.
		if err := dog.Wait(); err != nil {
			return err
		}
		u, ok, err := r.next()
		if err != nil {
			return dog.Cause(err)
		}
		dog.Pause() // the time that yield takes does not count for Idle
		if ok && !yield(u) {
			return nil
		}
	}
}

// reader converts one stream's events to updates. An event is a message, an answer to a health
// check, or a timeout. The timeout yields Empty, because a controller that works has then sent no
// message. Another goroutine receives the first message, because the reader waits for all three
// events at once.
type reader struct {
	*watch
	dog        *stream.Watchdog // ends the stream at a time limit
	opened     time.Time
	updates    grpc.ServerStreamingClient[destination.Update]
	first      chan received // receives the first message; nil after that message
	answers    chan bool     // answers to health checks; true if the server of the stream answered
	stopChecks context.CancelFunc
	// a timer for the time without messages after which the set counts as empty. It is nil before
	// the stream's server has answered a health check.
	empty <-chan time.Time
}

// next waits for a message, an answer to a health check, or a time limit. ok is false if the
// event leads to no update, for example an answer to a health check.
func (r *reader) next() (u resolve.Update, ok bool, err error) {
	var m received
	// After the first message nothing else is waited for, so no other goroutine is needed.
	if r.first == nil {
		m = r.receive()
	} else {
		select {
		case <-r.dog.Context().Done():
			// A time limit has passed. The caller turns this error into the limit's own.
			return u, false, r.dog.Context().Err()
		case sameServer := <-r.answers:
			// An answer shows that the controller works: the Initial limit no longer applies.
			r.dog.Heard()
			// Another server may know nothing about this stream, so its answer does not prove that there is nothing to
			// send.
			if sameServer {
				r.empty = time.After(time.Until(r.opened.Add(emptyAfter)))
			}
			return u, false, nil
		case <-r.empty:
			// Once is enough: a nil channel is never ready.
			r.empty = nil
			return resolve.Update{Kind: resolve.Empty}, true, nil
		case m = <-r.first:
			r.stopChecks()
			r.first, r.empty = nil, nil
		}
	}
	// The stream has ended.
	if m.err != nil {
		return u, false, m.err
	}
	u, ok = update(m.message, r.ignored.Add)
	if ok && u.Kind != resolve.Remove { // see Initial of Limits
		r.dog.Heard()
	}
	return u, ok, nil
}

// received is one message of a stream, or the error at its end.
type received struct {
	message *destination.Update
	err     error
}

// receive waits for a message. A panic of the connection ends the stream.
func (r *reader) receive() (m received) {
	m.err = panics.Do("the connection", func() (err error) {
		m.message, err = r.updates.Recv()
		return err
	})
	return m
}

// receiveFirst receives the first message and sends it to the channel r.first. It runs on its own
// goroutine, because next also waits for other events until then. If the stream's context ends
// before next takes the message, receiveFirst drops it.
func (r *reader) receiveFirst() {
	// r.first is read here once, because next sets it to nil.
	first, m := r.first, r.receive()
	select {
	case first <- m:
	case <-r.dog.Context().Done():
	}
}

// checkHealth sends gRPC health checks, and reports on the channel answers whether the stream's
// server, whose address is server, answered. If this server answers, checkHealth sends true and
// returns. At the first answer from another address, it sends false and continues. The first check
// is sent after healthCheckAfter, or after half of Initial if that is shorter. Further checks
// follow with a backoff.
//
// A status counts as an answer unless it is Unavailable, DeadlineExceeded or Canceled. An answer
// proves that the controller runs. A gRPC keep-alive would not prove that, because the controller's
// proxy answers PINGs.
func (w *watch) checkHealth(ctx context.Context, server string, answers chan<- bool) {
	pause := backoff.Backoff{Min: healthCheckAfter, Max: time.Minute}
	if w.limits.Initial > 0 {
		pause.Min = min(pause.Min, w.limits.Initial/2)
	}
	health, reported := grpc_health_v1.NewHealthClient(w.conn), false
	// The first pause is before the first check: a message usually arrives earlier.
	for n := 0; backoff.Sleep(ctx, pause.Delay(n)) == nil; n++ {
		var from peer.Peer
		var err error
		// A panic of the connection counts as no answer.
		if panics.Contain(func() { _, err = health.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Peer(&from)) }) != nil {
			continue
		}
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled: // not an answer
			continue
		}
		// Behind a load balancer, the check may reach another server than the stream.
		same := addrOf(&from) == server
		// Another server's answer is reported once, because it only ends the Initial limit.
		if reported && !same {
			continue
		}
		reported = true
		select {
		case answers <- same:
		case <-ctx.Done():
		}
		// Nothing more to find out.
		if same {
			return
		}
	}
}

// serverOf returns the address of a stream's server, or "" if it is unknown.
func serverOf(ctx context.Context) string {
	p, _ := peer.FromContext(ctx)
	return addrOf(p)
}

// addrOf returns the address of p, or "" if it is unknown.
func addrOf(p *peer.Peer) string {
	if p == nil || p.Addr == nil {
		return ""
	}
	return p.Addr.String()
}

// failure returns the error to yield when a stream has ended with err. The returned error matches
// ErrUnresolvable if the controller rejected the target.
func (w *watch) failure(err error) error {
	// A clean end is an error too, so that the consumer learns that the set is no longer updated.
	if errors.Is(err, io.EOF) {
		err = stream.ErrEnded
	}
	// With these codes, linkerd's controller rejects a name that is not a service.
	switch status.Code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition:
		return fmt.Errorf("linkerd: get %q: %w: %w", w.target, resolve.ErrUnresolvable, err)
	}
	return fmt.Errorf("linkerd: get %q: %w", w.target, err)
}
