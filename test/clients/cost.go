package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// cost is what a client costs.
type cost struct {
	cpu         float64 // µs per request in the client's process, user and system
	allocations float64 // per request
	size        float64 // MB
	modules     int     // in addition to the main module
}

const (
	rounds   = 15   // for each client; clients take turns, so that a busy machine slows all alike
	requests = 3000 // per round, one after the other
)

// serveHello runs a server until its standard input ends. It is a process of its own, so that its
// CPU time does not count.
func serveHello() {
	s := start(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	fmt.Println(s.URL)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// measure returns each client's costs by its name.
func measure(all []subject) map[string]cost {
	program, err := os.Executable()
	if err != nil {
		log.Fatal(err)
	}
	server := exec.Command(program, "serve") //nolint:gosec,noctx // it is this program
	server.Stderr = os.Stderr
	stdin, err := server.StdinPipe()
	if err != nil {
		log.Fatal(err)
	}
	stdout, err := server.StdoutPipe()
	if err != nil {
		log.Fatal(err)
	}
	if err := server.Start(); err != nil {
		log.Fatal(err)
	}
	defer func() {
		_ = stdin.Close()
		_ = server.Wait()
	}()
	url, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		log.Fatal(err)
	}
	url = strings.TrimSpace(url)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	clients := make(map[string]*http.Client)
	cpu := make(map[string][]float64)
	allocations := make(map[string][]float64)
	for _, s := range all {
		clients[s.name] = s.make(ctx, settings{})
		load(clients[s.name], url) // warms up, and does not count
	}
	for range rounds {
		for _, s := range all {
			c, a := load(clients[s.name], url)
			cpu[s.name] = append(cpu[s.name], c)
			allocations[s.name] = append(allocations[s.name], a)
		}
	}
	costs := make(map[string]cost)
	for _, s := range all {
		c := smallest(s.program)
		c.cpu = median(cpu[s.name])
		c.allocations = median(allocations[s.name])
		costs[s.name] = c
	}
	return costs
}

// median returns the median of values, which it sorts.
func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// load sends one round's requests, and returns the CPU time and the allocations per request.
func load(c *http.Client, url string) (cpu, allocations float64) {
	// Garbage of earlier rounds must not be collected at this round's cost.
	runtime.GC()
	var previous, current runtime.MemStats
	runtime.ReadMemStats(&previous)
	start := cpuTime()
	for range requests {
		if _, err := get(c, url); err != nil {
			log.Fatal(err)
		}
	}
	cpu = (cpuTime() - start) / requests
	runtime.ReadMemStats(&current)
	return cpu, float64(current.Mallocs-previous.Mallocs) / requests
}

// cpuTime returns this process's CPU time in microseconds.
func cpuTime() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		log.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1000
}

// smallest builds the smallest program with a client, and returns its size and number of modules.
func smallest(program string) cost {
	dir, err := os.MkdirTemp("", "clients")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, program)
	run("build", "-trimpath", "-ldflags", "-s -w", "-o", file, "./least/"+program)
	info, err := os.Stat(file)
	if err != nil {
		log.Fatal(err)
	}
	// The program lists its modules, each dependency on a line that begins with dep.
	return cost{size: float64(info.Size()) / 1e6, modules: bytes.Count(run("version", "-m", file), []byte("\n\tdep\t"))}
}

// run runs the go command.
func run(args ...string) []byte {
	cmd := exec.Command("go", args...) //nolint:gosec,noctx // the arguments are those above
	cmd.Stderr = os.Stderr
	output, err := cmd.Output()
	if err != nil {
		log.Fatal(err)
	}
	return output
}
