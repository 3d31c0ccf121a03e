package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// TestScreenshots makes the pictures of README.md:
//
//	GOTOWER_SCREENSHOTS=examples/demo go test -count=1 -run TestScreenshots ./examples/demo
func TestScreenshots(t *testing.T) {
	folder := os.Getenv("GOTOWER_SCREENSHOTS")
	if folder == "" {
		t.Skip("set GOTOWER_SCREENSHOTS to a folder for the pictures")
	}
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no Chromium on this machine: .ci/view.sh installs it")
	}
	// A package's tests run in its own folder.
	if !filepath.IsAbs(folder) {
		folder = filepath.Join("..", "..", folder)
	}
	require.NoError(t, os.MkdirAll(folder, 0o755))

	ctx, stop := context.WithCancel(context.Background())
	running, ctx := errgroup.WithContext(ctx)
	d, err := start(ctx, running, options{rate: 60}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	voting, enough := context.WithCancel(ctx)
	running.Go(func() error { d.bot.Run(voting); return nil })
	t.Cleanup(func() {
		enough()
		d.client.CloseIdleConnections()
		stop()
		require.NoError(t, running.Wait())
	})
	page := "http://" + d.proxies[1].Admin + "/view/"
	shoot(t, chromium, page, folder, "page.png", 40*time.Second, "")
	shoot(t, chromium, page, folder, "request.png", 4*time.Second, `
		const rows = [...document.querySelectorAll('#tap-table tr[data-key]')];
		(rows.find(r => r.textContent.includes('VoteDoughnut')) ?? rows[0]).click(); ''`)
}

// shoot opens a page, waits, runs a script on it if there is one, and saves a screenshot.
func shoot(t *testing.T, chromium, page, folder, name string, after time.Duration, do string) {
	t.Helper()
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox,
		chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1280, 1000))
	ctx, end := chromedp.NewExecAllocator(context.Background(), opts...)
	defer end()
	ctx, endContext := chromedp.NewContext(ctx)
	defer endContext()
	defer func() { _ = chromedp.Cancel(ctx) }()
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate(page), chromedp.Sleep(after)))
	if do != "" {
		_, err := chromedp.Run(ctx, chromedp.Evaluate[string](do))
		require.NoError(t, err)
		require.NoError(t, chromedp.Do(ctx, chromedp.Sleep(time.Second)))
	}
	picture, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, name), picture, 0o600))
}

// The page that the walk-through mentions exists.
func TestPage(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(context.Background())
	running, ctx := errgroup.WithContext(ctx)
	d, err := start(ctx, running, options{rate: 1}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer func() {
		d.client.CloseIdleConnections()
		stop()
		require.NoError(t, running.Wait())
	}()
	for _, p := range d.proxies {
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		rsp, err := c.Get("http://" + p.Admin + "/view/")
		require.NoError(t, err)
		body, err := io.ReadAll(rsp.Body)
		rsp.Body.Close()
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, rsp.StatusCode)
		require.Contains(t, string(body), "<title>gotower")
	}
}
