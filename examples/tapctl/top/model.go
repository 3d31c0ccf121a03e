package top

import (
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/gotower/gotower/tap/tappb"
)

// watching starts to show requests, see follower.
type watching interface {
	watch(number int, req *tappb.WatchRequest) (stop func())
}

// model is the state of the program. Its screens lie on each other: rows, the
// requests of one, one request; and help above all.
type model struct {
	config Config
	source watching
	now    func() time.Time

	width, height int
	latest        *tappb.TopResponse
	table         table
	requests      *requests
	detail        *detail
	help          bool
	numbers       int // of lists of requests so far

	news    error
	newsAt  time.Time
	refused []error // by processes that are not asked again
	over    error   // by all of them
}

// newsLast is how long an error is shown. A lasting error is repeated before that.
const newsLast = 15 * time.Second

func newModel(c Config, source watching) *model {
	return &model{config: c, source: source, now: time.Now, table: newTable(c)}
}

// Init asks for nothing: rows come by themselves.
func (m *model) Init() tea.Cmd { return nil }

// Update takes a message.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case rowsMsg:
		m.latest = msg.answer
		m.table.take(msg.answer)
	case newsMsg:
		m.hear(msg)
	case overMsg:
		m.over = msg.err
		return m, tea.Quit
	case seenMsg:
		if m.requests != nil && m.requests.number == msg.number {
			m.requests.take(msg)
		}
	case tea.PasteMsg:
		if m.requests == nil && !m.help {
			m.table.paste(msg.Content)
		}
	case tea.KeyPressMsg:
		return m, m.press(msg)
	}
	return m, nil
}

// hear keeps what will not come again: for as long as what it is about is there.
func (m *model) hear(news newsMsg) {
	switch {
	case news.number > 0 && (m.requests == nil || m.requests.number != news.number):
	case !Refused(news.err):
		m.news, m.newsAt = news.err, m.now()
	case news.number > 0:
		m.requests.refused = append(m.requests.refused, news.err)
	default:
		m.refused = append(m.refused, news.err)
	}
}

// press is a key.
func (m *model) press(msg tea.KeyPressMsg) tea.Cmd {
	key := msg.String()
	switch {
	case key == "ctrl+c":
		return tea.Quit
	case key == "ctrl+z":
		return tea.Suspend
	case m.help:
		m.help = false
		return nil
	case m.requests == nil && m.table.typing:
		m.table.write(key, msg.Text)
		return nil
	case key == "q":
		return tea.Quit
	case key == "?":
		m.help = true
		return nil
	}
	switch {
	case m.detail != nil:
		m.pressDetail(key)
	case m.requests != nil:
		m.pressRequests(key)
	default:
		m.pressTable(key)
	}
	return nil
}

func (m *model) pressTable(key string) {
	if key != "enter" {
		m.table.press(key, m.body())
		return
	}
	row := m.table.selected(m.body())
	if row == nil {
		return
	}
	m.numbers++
	m.requests = newRequests(m.numbers, row, m.table.columns.HideSources)
	m.requests.stop = m.source.watch(m.numbers, m.requests.ask(&m.config))
}

func (m *model) pressRequests(key string) {
	switch key {
	case "esc", "backspace":
		m.requests.stop()
		m.requests = nil
	case "enter":
		if r := m.requests.selected(m.body()); r != nil {
			m.detail = &detail{record: r}
		}
	default:
		m.requests.press(key, m.body())
	}
}

func (m *model) pressDetail(key string) {
	if key == "esc" || key == "backspace" {
		m.detail = nil
		return
	}
	m.detail.press(key, m.width, m.body())
}
