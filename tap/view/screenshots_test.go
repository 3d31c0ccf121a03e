package view

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// screenshotsVariable names the environment variable with the folder of
// TestScreenshots. Without it the test is skipped.
const screenshotsVariable = "GOTOWER_SCREENSHOTS"

func TestScreenshots(t *testing.T) {
	folder := os.Getenv(screenshotsVariable)
	if folder == "" {
		t.Skip("set " + screenshotsVariable + " to a folder for the pictures")
	}
	require.NoError(t, os.MkdirAll(folder, 0o755))
	tn := newTestProxy(t)
	b := newBrowser(t)
	h := newHost(t, tn.config())
	tn.traffic(t, 6)
	b.open(h)
	b.until(`document.getElementById('plot-latency').querySelectorAll('path').length > 2`)
	time.Sleep(20 * time.Second) // so that there is something in the plots
	for _, theme := range []string{"light", "dark"} {
		for _, size := range [][2]int64{{1440, 900}, {1024, 768}, {390, 844}} {
			b.prefer(theme)
			b.do(chromedp.EmulateViewport(size[0], size[1]), chromedp.Sleep(1500*time.Millisecond))
			name := theme + "-" + strconv.FormatInt(size[0], 10)
			b.shoot(folder, name)
			b.ask(`document.querySelector('#tap-table tr[data-key]').click() || ''`)
			b.do(chromedp.Sleep(700 * time.Millisecond))
			b.shootView(folder, name+"-request")
			b.press("\x1b")
		}
	}
	b.do(chromedp.EmulateViewport(1440, 900))
	b.prefer("light")
	b.press("1jjj?")
	b.shootView(folder, "light-1440-keys")
	b.press(kb.Escape)
	h.stop()
	b.until(`document.getElementById('state').textContent === 'reconnecting'`)
	b.shootView(folder, "light-1440-lost")
	h.start(tn.config())
}

func (b *browser) shoot(folder, name string) {
	b.t.Helper()
	b.keep(folder, name, chromedp.FullScreenshot(100))
}

func (b *browser) shootView(folder, name string) {
	b.t.Helper()
	b.keep(folder, name, chromedp.CaptureScreenshot())
}

// keepIfAsked saves a screenshot in tests of other pages, if the environment variable is
// set.
func (b *browser) keepIfAsked(name string) {
	b.t.Helper()
	if folder := os.Getenv(screenshotsVariable); folder != "" {
		b.shoot(folder, name)
	}
}

func (b *browser) keep(folder, name string, shoot chromedp.Action[[]byte]) {
	b.t.Helper()
	picture, err := chromedp.Run(b, shoot)
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(filepath.Join(folder, name+".png"), picture, 0o600))
}
