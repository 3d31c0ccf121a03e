package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/examples/tapctl/template"
	"github.com/gotower/gotower/examples/tapctl/text"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// tapCommand is "tapctl tap". It prints each event as it arrives.
type tapCommand struct {
	filter    filter
	responses responses
	output    string
	duration  time.Duration
	limit     uint64
	sample    float64
	body      uint
	explain   bool // show how each request was routed and balanced

	template *template.Template // template of -o jsonpath=…, or nil
}

// flags defines the flags in f.
func (c *tapCommand) flags(f *flag.FlagSet) {
	c.filter.flags(f)
	c.responses.flags(f)
	f.StringVar(&c.output, "o", "",
		"`format`: wide, with all labels; json, with header fields as well; jsonpath=TEMPLATE, what a template makes of json")
	f.DurationVar(&c.duration, "for", 0, "stop after this `time`")
	f.Uint64Var(&c.limit, "limit", 0, "stop after `n` requests of each target")
	f.Float64Var(&c.sample, "sample", 0, "only this `share` of the requests: 0.01")
	f.UintVar(&c.body, "body", 0, "show up to `n` bytes of each body, if the program allows it")
	f.BoolVar(&c.explain, "explain", false, "show how each request was routed and balanced")
}

// check returns an error for a flag that has a wrong value.
func (c *tapCommand) check() error {
	if err := c.checkOutput(); err != nil {
		return err
	}
	if c.duration < 0 {
		return noTime("--for", c.duration)
	}
	if !(c.sample >= 0 && c.sample <= 1) { // NaN, too
		return fmt.Errorf("--sample %v: it must be from 0 to 1", c.sample)
	}
	if _, err := c.responses.match(); err != nil {
		return err
	}
	return c.filter.check()
}

// checkOutput checks -o, and parses the template of jsonpath.
func (c *tapCommand) checkOutput() error {
	format, text, hasText := strings.Cut(c.output, "=")
	// The order matters: a known format needs no "=".
	switch {
	case c.output == "", c.output == "wide", c.output == "json":
		return nil
	case format != "jsonpath":
		return fmt.Errorf("-o %s: no such format; there are wide, json and jsonpath=TEMPLATE", c.output)
	case !hasText || text == "":
		return errors.New("-o jsonpath needs a template: -o jsonpath='{.requestInitEvent.path}'")
	}
	var err error
	if c.template, err = template.Parse(text, jsonEvent{}); err != nil {
		return fmt.Errorf("-o jsonpath: %w", err)
	}
	return nil
}

// request returns the request with which tapctl watches the processes. If linkerd's tap cannot
// serve it, feature names what only gotower's tap supports; otherwise it is "".
func (c *tapCommand) request() (req *tappb.WatchRequest, feature string, err error) {
	m, err := c.filter.match()
	if err != nil {
		return nil, "", err
	}
	response, err := c.responses.match()
	if err != nil {
		return nil, "", err
	}
	req = &tappb.WatchRequest{
		Match: m, Headers: c.filter.headerMatches(), Response: response,
		Limit: c.limit, Sample: c.sample, Fields: c.output == "json" || c.template != nil,
		// The process limits bodies further.
		BodyBytes: uint32(min(c.body, 1<<20)), Explain: c.explain,
	}
	if c.duration > 0 {
		req.Duration = durationpb.New(c.duration) // the process ends the stream
	}
	// The first feature that linkerd's tap lacks is enough for the error message.
	switch feature = c.filter.gotowerOnly(); {
	case feature != "":
	case response != nil:
		feature = "conditions on responses (--status, --failures, --slower)"
	case c.sample > 0 && c.sample < 1:
		feature = "samples (--sample)"
	case c.body > 0:
		feature = "bodies (--body)"
	case c.explain:
		feature = "explanations (--explain)"
	}
	return req, feature, nil
}

// quiet is how long tapctl waits for an event before it prints a hint. The hint is printed
// once.
const quiet = 5 * time.Second

// run prints events until the user interrupts, or a limit is reached.
func (c *tapCommand) run(ctx context.Context, term terminal) error {
	req, feature, err := c.request()
	if err != nil {
		return err
	}
	warn := warner(term.err)
	taps, closeAll, err := term.source(ctx, feature, warn)
	if err != nil {
		return err
	}
	defer closeAll()
	began := time.Now()
	// The hint appears once, if nothing has been received for a while.
	nothing := time.AfterFunc(quiet, func() {
		fmt.Fprintln(term.err, "tapctl: no such request yet; tapctl check may find the reason")
	})
	defer nothing.Stop()
	if c.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.duration+time.Second) // the processes end the streams, unless one is not connected
		defer cancel()
	}
	err = follow(ctx, taps, req, c.filter.maxRPS, warn, func(event tap.ProcessEvent) error {
		nothing.Stop()
		// An event may be the report that others have been dropped.
		if n := event.Event.Dropped; n > 0 {
			warn(fmt.Errorf("%s: %s dropped: the output is too slow; narrow the filter or use --sample",
				event.From, text.Plural(n, "event")))
			return nil
		}
		return c.print(term, event, warn)
	})
	if err == nil && nothing.Stop() { // the message was not printed yet
		noRequest(term, spent(ctx, began, c.duration))
	}
	return err
}

func (c *tapCommand) useCluster(p *pods) error { return c.filter.useCluster(p) }

// print writes one event in the format of -o.
func (c *tapCommand) print(term terminal, event tap.ProcessEvent, warn func(error)) error {
	e := event.Event
	switch {
	case c.output == "json":
		return writeJSON(term.out, e)
	case c.template != nil:
		err := c.template.Execute(term.out, newJSONEvent(e))
		// A template may not fit to every event, which is worth a warning only.
		if _, ok := errors.AsType[*template.Error](err); ok {
			warn(fmt.Errorf("-o jsonpath: of some events: %w", err))
			return nil
		}
		return err
	}
	printed := line(e, c.output == "wide")
	// A pod's name tells which proxy has seen the request.
	if term.pods != nil {
		printed += " pod=" + event.From
	}
	if _, err := fmt.Fprintln(term.out, printed); err != nil {
		return err
	}
	return writeMore(term.out, e)
}
