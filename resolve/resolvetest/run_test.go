package resolvetest

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
)

// fault is a defect that the suite must find.
type fault struct {
	want    string   // part of each error
	finders []string // the checks that must find it; others may
}

func faults() map[string]fault {
	return map[string]fault{
		"no first answer":                                    {"no item in", []string{"first answer", "first answer empty", "first answer does not exist", "changes"}},
		"waits for endpoints":                                {"no item in", []string{"first answer empty", "first answer does not exist"}},
		"does not exist is no answer":                        {"no item in", []string{"first answer does not exist"}},
		"one by one":                                         {"not by way of", []string{"first answer"}},
		"ends after the first answer":                        {"the sequence ended", []string{"first answer", "changes", "redundant", "two targets"}},
		"empty as does not exist":                            {"does not exist []", []string{"first answer empty", "becomes empty", "interruption, then empty"}},
		"does not exist as empty":                            {"empty []", []string{"first answer does not exist", "ceases to exist", "interruption, then gone"}},
		"unresolvable in silence":                            {"without an error that matches ErrUnresolvable", []string{"unresolvable"}},
		"unresolvable by another name":                       {"without an error that matches ErrUnresolvable", []string{"unresolvable"}},
		"unresolvable as does not exist":                     {"an update (does not exist) of an unresolvable target", []string{"unresolvable"}},
		"unresolvable twice":                                 {"after the last item, ", []string{"unresolvable"}},
		"goes on after unresolvable":                         {"after the last item: no item in", []string{"unresolvable"}},
		"never removes":                                      {"no item in", []string{"changes"}},
		"drops removes":                                      {"no item in", []string{"messages"}},
		"drops empty":                                        {"no item in", []string{"becomes empty", "messages"}},
		"drops does not exist":                               {"no item in", []string{"ceases to exist", "messages"}},
		"drops changed labels":                               {"no item in", []string{"labels"}},
		"drops changed IDs":                                  {"no item in", []string{"identity"}},
		"empties first":                                      {"empty", []string{"labels", "identity", "redundant"}},
		"add replaces":                                       {"no item in", []string{"messages"}},
		"errors with updates":                                {"an update or an error", []string{"first answer", "changes"}},
		"items of nothing":                                   {"an update or an error", []string{"first answer", "changes"}},
		"final error for news":                               {"wrongly unresolvable", []string{"first answer", "changes"}},
		"one target for all":                                 {"not by way of", []string{"two targets"}},
		"streams end together":                               {"no item in", []string{"two streams"}},
		"streams share what is new":                          {"no item in", []string{"two streams", "slow consumer"}},
		"waits for the slowest":                              {"while another consumer is slow", []string{"slow consumer"}},
		"yields after a break":                               {"after the consumer broke", []string{"break", "two streams"}},
		"waits after a break":                                {"did not end", []string{"break", "two streams"}},
		"leaves a goroutine after a break":                   {"unexpected goroutines", []string{"break", "break in an outage"}},
		"leaves a goroutine":                                 {"unexpected goroutines", []string{"break", "context ends between updates", "context ends in the loop", "context ends in an outage"}},
		"ignores its context":                                {"did not end", []string{"context ends between updates", "context ends in the loop", "two streams"}},
		"misses a context that is done before":               {"did not end", []string{"context is done before"}},
		"misses a context that ends in the loop":             {"did not end", []string{"context ends in the loop"}},
		"misses a context that ends in an outage":            {"did not end", []string{"context ends in an outage"}},
		"empties when its context ends":                      {"after its context ended", []string{"context ends between updates"}},
		"unresolvable when its context ends":                 {"after its context ended", []string{"context ends between updates"}},
		"misses a context that ends before the first answer": {"did not end", []string{"context ends before the first answer"}},
		"ends late":                                          {"to end; want 1s", []string{"break", "panic", "context ends between updates", "context ends in the loop", "context ends before the first answer", "context is done before", "context ends in an outage", "break in an outage"}},
		"subscribes in Resolve":                              {"not by way of", []string{"not ranged over"}},
		"starts a goroutine in Resolve":                      {"unexpected goroutines", []string{"not ranged over"}},
		"leaves a goroutine after a panic":                   {"unexpected goroutines", []string{"panic"}},
		"swallows panics":                                    {"did not pass on the consumer", []string{"panic"}},
		"newest first":                                       {"after the latest set", []string{"backlog"}},
		"repeats the first answer":                           {"not by way of", []string{"later stream"}},
		"one stream comes back":                              {"no item in", []string{"interruption of two streams"}},
		"quiet when interrupted":                             {"no item in", []string{"break in an outage"}},
		"empties when interrupted":                           {"not by way of", []string{"interruption", "interruption, then the same"}},
		"ends when interrupted":                              {"the sequence ended", []string{"interruption", "interruption, then empty", "interruption, then the same"}},
		"deaf after an interruption":                         {"no item in", []string{"interruption", "interruption, then empty"}},
		"quiet when back to the same":                        {"no item in", []string{"interruption is over"}},
		"adds when back":                                     {"not by way of", []string{"interruption"}},
		"one by one when back":                               {"not by way of", []string{"interruption"}},
		"empties when back":                                  {"not by way of", []string{"interruption, then the same"}},
		"keeps what it knew when back to nothing":            {"no item in", []string{"interruption, then empty", "interruption, then gone"}},
	}
}

func TestRunAccepts(t *testing.T) { Run(t, subject("")) }

func TestRunRejectsFaults(t *testing.T) {
	for name, fault := range faults() {
		t.Run(name, func(t *testing.T) {
			for _, c := range Checks() {
				if !slices.Contains(fault.finders, c.Name) {
					continue
				}
				// Waiting takes no time in a bubble.
				synctest.Test(t, func(t *testing.T) {
					faulty := subject(name)
					faulty.Timeout = 5 * time.Second // to look for goroutines again and again does take time
					skipped, err := c.try(t, faulty)
					require.Empty(t, skipped)
					require.ErrorContains(t, err, fault.want, "%q does not find it", c.Name)
				})
			}
		})
	}
}

func TestChecksFindFaults(t *testing.T) {
	found := map[string]bool{}
	for _, fault := range faults() {
		for _, name := range fault.finders {
			found[name] = true
		}
	}
	var names []string
	for _, c := range Checks() {
		names = append(names, c.Name)
		assert.NotEmpty(t, c.Claim, c.Name)
	}
	assert.ElementsMatch(t, slices.Collect(maps.Keys(found)), names)
}

func TestRunSkips(t *testing.T) {
	bare := subject("")
	full := bare.New
	bare.Relabel, bare.Rekey = nil, nil
	bare.New = func(t testing.TB) (resolve.Resolver, Source) {
		r, src := full(t)
		return r, Source{Set: src.Set}
	}
	skips := map[string]string{}
	for _, c := range Checks() {
		skipped, err := c.try(t, bare)
		require.NoError(t, err, c.Name)
		if skipped != "" {
			assert.Contains(t, skipped, c.Claim)
			skips[c.Name] = skipped
		}
	}
	for name, field := range map[string]string{
		"first answer empty":          "Source.Empty",
		"first answer does not exist": "Source.DoesNotExist",
		"unresolvable":                "Source.Reject",
		"labels":                      "Subject.Relabel",
		"identity":                    "Subject.Rekey",
		"messages":                    "Source.Send",
		"interruption":                "Source.Interrupt",
	} {
		assert.Contains(t, skips[name], "("+field+" is nil)", name)
	}
	assert.NotContains(t, skips, "changes")
	assert.NotContains(t, skips, "break")
}

// A shared connection that changes after an interruption is not a leak.
func TestRunSharedConnection(t *testing.T) {
	for _, c := range Checks() {
		synctest.Test(t, func(t *testing.T) {
			_, err := c.try(t, sharing())
			require.NoError(t, err, c.Name)
		})
	}
}

// sharing has a goroutine that reads the connection until it is closed.
func sharing() Subject {
	s := subject("")
	inner := s.New
	s.New = func(t testing.TB) (resolve.Resolver, Source) {
		r, src := inner(t)
		var connection chan struct{}
		dial := func() {
			closed := make(chan struct{})
			connection = closed
			go func() { <-closed }()
		}
		dial()
		t.Cleanup(func() { close(connection) })
		interrupt := src.Interrupt
		src.Interrupt = func(target string, meanwhile func()) {
			close(connection)
			interrupt(target, meanwhile)
			dial()
		}
		return r, src
	}
	return s
}
