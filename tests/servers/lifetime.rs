//! Programs that end with the test that has started them, even if it is killed.

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::getppid;

/// Lets the kernel kill a program as soon as the thread that starts it ends.
pub fn end_with_this_thread(command: &mut Command) {
    let parent = std::process::id() as i32;
    let prepare = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        // A parent that has ended before sends no signal.
        if getppid().as_raw() == parent { Ok(()) } else { Err(Errno::ESRCH.into()) }
    };
    // SAFETY: the function makes system calls only, and allocates nothing.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(prepare);
    }
}
