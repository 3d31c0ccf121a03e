package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/gotower/gotower/examples/tapctl/text"
	"github.com/gotower/gotower/tap/tappb"
)

// endpoint is a balancer's endpoint, as it appears in the tree in which the process describes its
// layers.
type endpoint struct {
	From   string            `json:"from"` // name of the process
	Target string            `json:"target"`
	Addr   string            `json:"addr"`
	State  map[string]string `json:"state"`
}

// endpointsCommand is "tapctl endpoints". It prints the endpoints of each target and their
// state in the balancer.
type endpointsCommand struct {
	output string
}

func (c *endpointsCommand) flags(f *flag.FlagSet) {
	f.StringVar(&c.output, "o", "", "`format`: wide, with all that is known; json")
}

// check reports invalid flags.
func (c *endpointsCommand) check() error {
	switch c.output {
	case "", "wide", "json":
		return nil
	}
	return fmt.Errorf("-o %s: no such format; there are wide and json", c.output)
}

// run prints the endpoints of all processes. Processes that do not answer are reported at the end.
func (c *endpointsCommand) run(ctx context.Context, term terminal) error {
	if term.pods != nil {
		var err error
		if term.targets, err = term.pods.current(ctx, warner(term.err)); err != nil {
			return err
		}
	}
	var endpoints []endpoint
	var errs []error
	for _, t := range term.targets {
		described, err := describe(ctx, t)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, n := range described.GetNodes() {
			endpoints = appendEndpoints(endpoints, t.name, "", n)
		}
	}
	// All of them failed, so there is nothing to print.
	if len(endpoints) == 0 && len(errs) == len(term.targets) {
		return errors.Join(errs...)
	}
	// A pod that starts or ends is no reason for the command to fail.
	if term.pods != nil { // some pods may start or end
		warn := warner(term.err)
		for _, err := range errs {
			warn(err)
		}
		errs = nil
	}
	return errors.Join(append(errs, c.print(term, endpoints))...)
}

// print writes the endpoints as a table or as JSON.
func (c *endpointsCommand) print(term terminal, endpoints []endpoint) error {
	if c.output == "json" {
		// append makes an empty slice, because JSON would show nil as null.
		return text.WriteJSON(term.out, append([]endpoint{}, endpoints...))
	}
	if len(endpoints) == 0 {
		_, err := fmt.Fprintln(term.err, "tapctl: no endpoints: no target was requested yet, or the program has no balancer")
		return err
	}
	w := tabwriter.NewWriter(term.out, 0, 0, 2, ' ', 0)
	head := "TARGET\tADDRESS\tPOD\tSTATE\tLATENCY\tOPEN\tPICKS\tREASON"
	if c.output == "wide" {
		head += "\tMORE"
	}
	// A column for the process is only needed if there are several.
	many := len(term.targets) > 1
	if many {
		head = "PROCESS\t" + head
	}
	fmt.Fprintln(w, head)
	for _, e := range endpoints {
		s := e.State
		line := []string{e.Target, e.Addr, pod(s), s["state"], latency(s), s["in_flight"], s["picks"], s["reason"]}
		if c.output == "wide" {
			line = append(line, rest(s))
		}
		if many {
			line = append([]string{e.From}, line...)
		}
		// An empty cell would shift the columns for programs that split lines at spaces.
		for i := range line {
			if line[i] = text.Clean(line[i]); line[i] == "" {
				line[i] = "-"
			}
		}
		fmt.Fprintln(w, strings.Join(line, "\t"))
	}
	return w.Flush()
}

// pod returns the value of the label pod in state, an endpoint's state. It returns "" without
// that label.
func pod(state map[string]string) string {
	_, labels, _ := strings.Cut(" "+strings.TrimPrefix(state["labels"], "map["), " pod:")
	name, _, _ := strings.Cut(labels, " ")
	return strings.TrimSuffix(name, "]")
}

// latency returns the latency that the balancer expects from an endpoint whose attributes are
// state, or "" if the balancer has not measured it.
func latency(state map[string]string) string {
	if state["known"] == "false" {
		return ""
	}
	return state["ewma"]
}

// describe asks the process at t for the tree of its layers.
func describe(ctx context.Context, t target) (*tappb.DescribeResponse, error) {
	conn, err := dial(t)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	// A process that does not answer must not hang the command.
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := tappb.NewTapClient(conn).Describe(ctx, &tappb.DescribeRequest{})
	if err != nil {
		return nil, advise(fmt.Errorf("%s: %w", t.name, err))
	}
	return r, nil
}

// appendEndpoints appends the endpoints in n and below it to endpoints. process is the process's
// name, and target comes from the nearest node above n that has one.
func appendEndpoints(endpoints []endpoint, process, target string, n *tappb.Node) []endpoint {
	// state contains n's attributes by key.
	state := map[string]string{}
	for _, a := range n.GetState() {
		state[a.GetKey()] = a.GetValue()
	}
	// The name alone is not enough: other layers may use it too.
	if n.GetName() == "endpoint" && state["addr"] != "" {
		return append(endpoints, endpoint{From: process, Target: target, Addr: state["addr"], State: state})
	}
	if t := state["target"]; t != "" {
		target = t
	}
	for _, c := range n.GetChildren() {
		endpoints = appendEndpoints(endpoints, process, target, c)
	}
	return endpoints
}

// rest returns the text for the column MORE: the attributes in state that no other column shows,
// as key=value, sorted by key.
func rest(state map[string]string) string {
	var parts []string
	for k, v := range state {
		// Attributes that have a column of their own are left out.
		switch k {
		case "addr", "state", "ewma", "in_flight", "picks", "reason", "known":
		default:
			parts = append(parts, k+"="+v)
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}
