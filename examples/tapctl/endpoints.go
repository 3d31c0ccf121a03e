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

// endpoint is one endpoint of a balancer. The data come from the tree of nodes with which the
// process describes its layers.
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

func (c *endpointsCommand) check() error {
	switch c.output {
	case "", "wide", "json":
		return nil
	}
	return fmt.Errorf("-o %s: no such format; there are wide and json", c.output)
}

func (c *endpointsCommand) run(ctx context.Context, on terminal) error {
	if on.pods != nil {
		var err error
		if on.targets, err = on.pods.current(ctx, warner(on.err)); err != nil {
			return err
		}
	}
	var all []endpoint
	var errs []error
	for _, t := range on.targets {
		described, err := describe(ctx, t)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, n := range described.GetNodes() {
			all = appendEndpoints(all, t.name, "", n)
		}
	}
	if len(all) == 0 && len(errs) == len(on.targets) {
		return errors.Join(errs...)
	}
	if on.pods != nil { // some pods may start or end
		warn := warner(on.err)
		for _, err := range errs {
			warn(err)
		}
		errs = nil
	}
	return errors.Join(append(errs, c.print(on, all))...)
}

func (c *endpointsCommand) print(on terminal, all []endpoint) error {
	if c.output == "json" {
		return text.WriteJSON(on.out, append([]endpoint{}, all...))
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(on.err, "tapctl: no endpoints: no target was requested yet, or the program has no balancer")
		return err
	}
	w := tabwriter.NewWriter(on.out, 0, 0, 2, ' ', 0)
	head := "TARGET\tADDRESS\tPOD\tSTATE\tLATENCY\tOPEN\tPICKS\tREASON"
	if c.output == "wide" {
		head += "\tMORE"
	}
	many := len(on.targets) > 1
	if many {
		head = "PROCESS\t" + head
	}
	fmt.Fprintln(w, head)
	for _, e := range all {
		s := e.State
		line := []string{e.Target, e.Addr, pod(s), s["state"], latency(s), s["in_flight"], s["picks"], s["reason"]}
		if c.output == "wide" {
			line = append(line, rest(s))
		}
		if many {
			line = append([]string{e.From}, line...)
		}
		for i := range line {
			if line[i] = text.Clean(line[i]); line[i] == "" {
				line[i] = "-"
			}
		}
		fmt.Fprintln(w, strings.Join(line, "\t"))
	}
	return w.Flush()
}

// pod returns the value of the label pod in state, the state of an endpoint. It returns ""
// without that label.
func pod(state map[string]string) string {
	_, after, _ := strings.Cut(" "+strings.TrimPrefix(state["labels"], "map["), " pod:")
	name, _, _ := strings.Cut(after, " ")
	return strings.TrimSuffix(name, "]")
}

// latency returns the latency that the balancer expects of an endpoint. state has the attributes
// of the endpoint. latency returns "" if the balancer has not measured it.
func latency(state map[string]string) string {
	if state["known"] == "false" {
		return ""
	}
	return state["ewma"]
}

func describe(ctx context.Context, t target) (*tappb.DescribeResponse, error) {
	conn, err := dial(t)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := tappb.NewTapClient(conn).Describe(ctx, &tappb.DescribeRequest{})
	if err != nil {
		return nil, advise(fmt.Errorf("%s: %w", t.name, err))
	}
	return r, nil
}

// appendEndpoints appends the endpoints in n and in the nodes below n to the slice all. The
// argument from is the name of the process. The argument target is the target of the nearest
// node above n that has a target, or "" without such a node.
func appendEndpoints(all []endpoint, from, target string, n *tappb.Node) []endpoint {
	state := map[string]string{}
	for _, a := range n.GetState() {
		state[a.GetKey()] = a.GetValue()
	}
	if n.GetName() == "endpoint" && state["addr"] != "" {
		return append(all, endpoint{From: from, Target: target, Addr: state["addr"], State: state})
	}
	if t := state["target"]; t != "" {
		target = t
	}
	for _, c := range n.GetChildren() {
		all = appendEndpoints(all, from, target, c)
	}
	return all
}

// rest returns the text for the column MORE: the attributes in state that no other column shows,
// as key=value, sorted by key.
func rest(state map[string]string) string {
	var parts []string
	for k, v := range state {
		switch k {
		case "addr", "state", "ewma", "in_flight", "picks", "reason", "known":
		default:
			parts = append(parts, k+"="+v)
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}
