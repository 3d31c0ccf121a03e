package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/gotower/gotower/examples/tapctl/cluster"
	"github.com/gotower/gotower/examples/tapctl/text"
)

// edgesCommand is "tapctl edges". It prints which resources have made connections to which others,
// from their proxies' metrics.
type edgesCommand struct{ output string }

func (c *edgesCommand) flags(f *flag.FlagSet) {
	f.StringVar(&c.output, "o", "", "`format`: json; or wide, with the identities")
}

// check reports invalid flags.
func (c *edgesCommand) check() error {
	if c.output != "" && c.output != "json" && c.output != "wide" {
		return fmt.Errorf("-o %s: no such format; there are json and wide", c.output)
	}
	return nil
}

// run prints the connections that the proxies of the targets have made or accepted.
func (c *edgesCommand) run(ctx context.Context, term terminal) error {
	if term.pods == nil {
		return usageError{errOnlyCluster}
	}
	edges, err := term.pods.Cluster.Edges(ctx, term.pods.Resources, term.pods.written[0].Kind, warner(term.err))
	switch {
	case err != nil:
		return err
	case c.output == "json":
		return text.WriteJSON(term.out, edgesJSON(edges))
	case len(edges) == 0:
		_, err := fmt.Fprintln(term.err, "tapctl: no proxy has a connection to or from such a resource")
		return err
	}
	return writeEdges(term.out, edges, c.output == "wide")
}

// writeEdges writes a table with the columns of "linkerd viz edges".
func writeEdges(out io.Writer, edges []cluster.Edge, wide bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head := "SRC\tDST\tSRC_NS\tDST_NS"
	if wide {
		head += "\tCLIENT_ID\tSERVER_ID"
	}
	// The column SECURED is always last.
	fmt.Fprintln(w, head+"\tSECURED")
	for _, e := range edges {
		cells := []string{e.Source, e.Destination, e.SourceNamespace, e.DestinationNamespace}
		if wide {
			cells = append(cells, orDash(e.ClientID), orDash(e.ServerID))
		}
		secured := "√"
		// Without TLS, the column tells why.
		if e.NoTLS != "" {
			secured = strings.ReplaceAll(e.NoTLS, "_", " ")
		}
		writeRow(w, append(cells, secured))
	}
	return w.Flush()
}

// edge is a table row in JSON, named as in linkerd.
type edge struct {
	Source               string `json:"src"`
	SourceNamespace      string `json:"src_namespace"`
	Destination          string `json:"dst"`
	DestinationNamespace string `json:"dst_namespace"`
	ClientID             string `json:"client_id"`
	ServerID             string `json:"server_id"`
	NoTLS                string `json:"no_tls_reason"`
}

// edgesJSON converts edges to rows with linkerd's names.
func edgesJSON(edges []cluster.Edge) []edge {
	rows := make([]edge, 0, len(edges))
	for _, e := range edges {
		rows = append(rows, edge{e.Source, e.SourceNamespace, e.Destination, e.DestinationNamespace, e.ClientID, e.ServerID, e.NoTLS})
	}
	return rows
}
