package spans

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// Limits: how many spans may wait, how many go into one request, the time between two requests,
// and a request's timeout.
const (
	maxWaiting    = 4096
	maxBatch      = 512
	batchInterval = time.Second
	exportTimeout = 5 * time.Second
)

// Exporter sends spans to an OTLP receiver. It is safe for concurrent use.
type Exporter struct {
	config Config
	spans  chan *Span // ended spans, waiting to be sent

	sent, failed, dropped, requests atomic.Uint64
}

// Config configures [New].
type Config struct {
	Send     Sender
	Resource []Attribute // describes the program, for example with service.name
	Scope    string      // import path of the package that makes the spans
	Log      *slog.Logger
}

// Sender sends an encoded ExportTraceServiceRequest to an OTLP receiver. See [HTTP] and [GRPC].
type Sender func(ctx context.Context, message []byte) error

// New returns an Exporter that sends nothing before [Exporter.Run].
func New(c Config) *Exporter {
	return &Exporter{config: c, spans: make(chan *Span, maxWaiting)}
}

// Counts are how many spans have been sent or lost since the start, and the number of requests to
// the receiver.
type Counts struct {
	Sent     uint64
	Failed   uint64 // the receiver could not be reached or returned an error
	Dropped  uint64 // because too many spans were waiting
	Requests uint64
}

// Counts returns how many spans have been sent or lost so far.
func (e *Exporter) Counts() Counts {
	return Counts{Sent: e.sent.Load(), Failed: e.failed.Load(), Dropped: e.dropped.Load(), Requests: e.requests.Load()}
}

// Add hands s to [Exporter.Run] without waiting. If 4096 spans are waiting already, s is dropped.
// Texts are cut off after 1024 bytes.
func (e *Exporter) Add(s *Span) {
	s.Name = shorten(s.Name)
	s.State = shorten(s.State)
	s.Failure = shorten(s.Failure)
	// A request must not wait for the receiver.
	select {
	case e.spans <- s:
	default:
		e.dropped.Add(1)
	}
}

// Run sends spans in batches until ctx ends. It then takes up to 5 seconds to send those that are
// still waiting.
func (e *Exporter) Run(ctx context.Context) {
	tick := time.NewTicker(batchInterval)
	defer tick.Stop()
	var batch []*Span
	// After ctx has ended, the loop below sends the rest.
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
			batch = e.export(ctx, batch)
		case s := <-e.spans:
			if batch = append(batch, s); len(batch) == maxBatch {
				batch = e.export(ctx, batch)
			}
		}
	}
	// ctx has ended, so the last requests need a context of their own, with one deadline for all.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), exportTimeout)
	defer cancel()
	for {
		for len(batch) < maxBatch && len(e.spans) > 0 {
			batch = append(batch, <-e.spans)
		}
		if len(batch) == 0 {
			return
		}
		batch = e.export(last, batch)
	}
}

// export sends batch and returns it emptied. If that fails, it logs the error, and the spans are
// lost. A request that has begun continues after ctx ends.
func (e *Exporter) export(ctx context.Context, batch []*Span) []*Span {
	if len(batch) == 0 {
		return batch
	}
	// Only Run's last context has a deadline. An earlier request gets its own.
	deadline, isLast := ctx.Deadline()
	if !isLast {
		deadline = time.Now().Add(exportTimeout)
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	defer cancel()
	// The spans count as sent or as failed.
	count := &e.sent
	if err := e.config.Send(ctx, e.config.encode(batch)); err != nil {
		count = &e.failed
		e.config.Log.Warn("spans were not sent", "spans", len(batch), "err", err)
	}
	e.requests.Add(1)
	count.Add(uint64(len(batch)))
	// The array stays in use, and must not keep the spans in memory.
	clear(batch)
	return batch[:0]
}
