#include "tools/browse/terminal.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <tessera/base/error.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <ftxui/component/app.hpp>
#include <ftxui/component/component.hpp>
#include <ftxui/component/event.hpp>
#include <ftxui/component/loop.hpp>
#include <ftxui/dom/elements.hpp>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

namespace tessera::tools {
namespace {

constexpr int kIdleMs = 1000;    // between looks at the clock where nothing happens
constexpr int kBusyMs = 150;     // while something is read, whose progress is shown
constexpr int kAfterKeyMs = 60;  // until a lone escape is one

/// Reads what is wanted on a thread of its own; wakes who waits in poll() for an answer.
class Worker {
 public:
  explicit Worker(BrowseReader& reader)
      : reader_(reader),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        thread_([this] { work(); }) {}
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
      queue_.clear();
      if (running_) running_->cancel();
    }
    changed_.notify_all();
    thread_.join();
    close(wake_);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  int wakes() const { return wake_; }

  void ask(std::vector<Want> wants) {
    if (wants.empty()) return;
    const std::lock_guard lock(mutex_);
    // Elements of where one was before are wanted no more.
    for (const Want& want : wants)
      if (want.what == Need::kValues)
        std::erase_if(queue_, [](const Want& old) { return old.what == Need::kValues; });
    for (Want& want : wants) queue_.push_back(std::move(want));
    changed_.notify_all();
  }

  /// Stops what is being read, and forgets what waits; each is answered.
  void stop(Stop what) {
    const std::lock_guard lock(mutex_);
    const auto stops = [&](Need need) { return need == Need::kCompare ? what.compare : what.page; };
    std::erase_if(queue_, [&](Want& want) {
      if (!stops(want.what)) return false;
      answers_.push_back({});
      answers_.back().want = std::move(want);
      answers_.back().stopped = true;
      return true;
    });
    if (running_ && stops(running_need_)) running_->cancel();
  }

  std::vector<Answer> take() {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = read(wake_, &count, sizeof count);
    const std::lock_guard lock(mutex_);
    return std::exchange(answers_, {});
  }

  std::optional<std::pair<std::uint64_t, std::uint64_t>> progress() const {
    const std::lock_guard lock(mutex_);
    if (!running_) return std::nullopt;
    return std::pair(progress_->done_bytes.load(), progress_->total_bytes.load());
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ends_ || !queue_.empty(); });
      if (ends_) return;
      const Want want = std::move(queue_.front());
      queue_.pop_front();
      running_ = std::make_unique<CancelToken>();
      running_need_ = want.what;
      progress_ = std::make_unique<Progress>();
      lock.unlock();
      Answer answer = reader_.answer(want, running_.get(), progress_.get());
      lock.lock();
      running_.reset();
      answers_.push_back(std::move(answer));
      const std::uint64_t one = 1;
      [[maybe_unused]] const auto put = write(wake_, &one, sizeof one);
    }
  }

  BrowseReader& reader_;
  int wake_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Want> queue_;
  std::vector<Answer> answers_;
  std::unique_ptr<CancelToken> running_;
  Need running_need_ = Need::kFacts;
  std::unique_ptr<Progress> progress_;
  bool ends_ = false;
  std::thread thread_;  // last: it uses the others
};

/// Signals of this thread are let in while it waits, and at no other time: none is missed between a
/// look at what came and the wait. The threads that read let none in at all.
class SignalsWhileWaiting {
 public:
  SignalsWhileWaiting() {
    sigset_t held;
    sigemptyset(&held);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH}) sigaddset(&held, signal);
    pthread_sigmask(SIG_BLOCK, &held, &before_);
  }
  ~SignalsWhileWaiting() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsWhileWaiting(const SignalsWhileWaiting&) = delete;
  SignalsWhileWaiting& operator=(const SignalsWhileWaiting&) = delete;

  /// Whether something is to be read, or a signal came, before the time is over.
  bool wait(int answers, int milliseconds) const {
    std::array<pollfd, 2> files = {{{STDIN_FILENO, POLLIN, 0}, {answers, POLLIN, 0}}};
    const timespec time{milliseconds / 1000, (milliseconds % 1000) * 1'000'000L};
    return ppoll(files.data(), files.size(), &time, &before_) != 0;
  }

 private:
  sigset_t before_{};
};

std::optional<KeyPress> key_of(const ftxui::Event& event) {
  using ftxui::Event;
  const std::pair<Event, Key> kKeys[] = {{Event::ArrowUp, Key::kUp},
                                         {Event::ArrowDown, Key::kDown},
                                         {Event::ArrowLeft, Key::kLeft},
                                         {Event::ArrowRight, Key::kRight},
                                         {Event::PageUp, Key::kPageUp},
                                         {Event::PageDown, Key::kPageDown},
                                         {Event::Home, Key::kHome},
                                         {Event::End, Key::kEnd},
                                         {Event::Return, Key::kEnter},
                                         {Event::Escape, Key::kEscape},
                                         {Event::Tab, Key::kTab},
                                         {Event::TabReverse, Key::kBackTab},
                                         {Event::Backspace, Key::kBackspace}};
  for (const auto& [known, key] : kKeys)
    if (event == known) return KeyPress{key};
  if (event.is_character()) return KeyPress{Key::kText, event.character()};
  return std::nullopt;
}

ftxui::Element element_of(const Span& span, bool color) {
  ftxui::Element element = ftxui::text(span.text);
  if (span.inverted) element |= ftxui::inverted;
  if (span.tint == Tint::kBold) element |= ftxui::bold;
  if (span.tint == Tint::kDim) element |= ftxui::dim;
  if (!color) return element;
  if (span.tint == Tint::kRed) element |= ftxui::color(ftxui::Color::Red);
  if (span.tint == Tint::kGreen) element |= ftxui::color(ftxui::Color::Green);
  if (span.tint == Tint::kYellow) element |= ftxui::color(ftxui::Color::Yellow);
  if (span.tint == Tint::kCyan) element |= ftxui::color(ftxui::Color::Cyan);
  return element;
}

ftxui::Element element_of(const Picture& picture, bool color) {
  ftxui::Elements lines;
  for (const PictureLine& line : picture) {
    ftxui::Elements spans;
    for (const Span& span : line) spans.push_back(element_of(span, color));
    lines.push_back(ftxui::hbox(std::move(spans)));
  }
  return ftxui::vbox(std::move(lines));
}

}  // namespace

void require_terminal() {
  const char* term = std::getenv("TERM");
  if (isatty(STDIN_FILENO) != 1 || isatty(STDOUT_FILENO) != 1)
    fail(Code::kInvalidArgument, "browse needs a terminal on stdin and stdout",
         "ckpt-inspect ls --tree prints the modules, report makes a page");
  if (term == nullptr || *term == '\0' || std::string_view(term) == "dumb")
    fail(Code::kInvalidArgument, "browse cannot draw on this terminal: TERM is unset or dumb",
         "set TERM, or use ckpt-inspect ls --tree");
}

void play(Browser& browser, BrowseReader& reader, bool color) {
  const SignalsWhileWaiting signals;
  Worker worker(reader);
  ftxui::App app = ftxui::App::Fullscreen();
  app.TrackMouse(false);
  app.HandlePipedInput(false);
  const ftxui::Component component =
      ftxui::CatchEvent(ftxui::Renderer([&] {
                          const ftxui::Dimensions size = ftxui::Terminal::Size();
                          browser.resize(size.dimx, size.dimy);
                          return element_of(browser.picture(), color);
                        }),
                        [&](const ftxui::Event& event) {
                          const auto key = key_of(event);
                          if (key) browser.press(*key);
                          return key.has_value();
                        });
  ftxui::Loop loop(&app, component);
  int quiet_ms = 0;  // since something came
  while (!loop.HasQuitted() && !browser.is_done()) {
    worker.stop(browser.take_stop());
    worker.ask(browser.take_wants());
    loop.RunOnce();
    if (loop.HasQuitted() || browser.is_done()) break;
    worker.stop(browser.take_stop());
    worker.ask(browser.take_wants());
    const auto before = worker.progress();
    const int wait_ms = quiet_ms < 2 * kAfterKeyMs ? kAfterKeyMs / 3 : before ? kBusyMs : kIdleMs;
    quiet_ms = signals.wait(worker.wakes(), wait_ms) ? 0 : quiet_ms + wait_ms;
    std::vector<Answer> answers = worker.take();
    const auto now = worker.progress();
    browser.set_progress(now);
    if (!answers.empty() || now || before) app.PostEvent(ftxui::Event::Custom);
    for (Answer& answer : answers) browser.deliver(std::move(answer));
  }
}

}  // namespace tessera::tools
